//! Where the driver's libraries go in an image so that its loader finds them: bytes in, plan out.
//!
//! Everything here is data to data. Nothing opens, reads or writes a file; the caller hands in
//! bytes that it read through its own safe handles, and every byte is taken to be hostile.
//!
//! | module | question |
//! | --- | --- |
//! | [`elf`] | what does this file say about itself: class, SONAME, what it needs |
//! | [`cache`] | which libraries does this `ld.so.cache` list |
//! | [`image`] | which loader does this image have, and where does it search |
//! | [`view`] | which driver library is bound where |
//! | [`families`] | which driver capability does this library or program belong to |

pub mod cache;
pub mod elf;
pub mod families;
pub mod image;
pub mod view;
