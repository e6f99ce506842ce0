//! Messages of the C library in one language: a translation would be read from files, by a loader of tables and of more
//! libraries that is a twentieth of a static program.
//!
//! Weak, so that a C library which brings these names with something else that is needed wins, and nothing is there twice.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

/// Stands for `dcgettext(3)`: every message is its own translation.
// SAFETY: a name of ours; gives back the pointer that the caller owns.
#[unsafe(no_mangle)]
extern "C" fn quilt_gpu_untranslated(
    _domain: *const c_char,
    message: *const c_char,
    _category: c_int,
) -> *const c_char {
    message
}

/// Stands for what a failed assertion of the C library does after it has printed a translated sentence.
// SAFETY: a name of ours; does not return, as `__assert_fail` does not.
#[unsafe(no_mangle)]
extern "C" fn quilt_gpu_assertion() -> ! {
    std::process::abort()
}

/// A weak name that jumps to a function of ours. A linker takes a member of an archive only for names that nobody has.
macro_rules! stands_for {
    ($ours:literal: $($name:literal)*) => {$(
        #[cfg(target_arch = "x86_64")]
        stands_for!(@ "jmp" $ours $name);
        #[cfg(target_arch = "aarch64")]
        stands_for!(@ "b" $ours $name);
    )*};
    (@ $jump:literal $ours:literal $name:literal) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", $name, ", \"ax\", %progbits"),
            concat!(".weak ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ": ", $jump, " ", $ours),
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
    };
}

stands_for!("quilt_gpu_untranslated": "__dcgettext" "dcgettext");
stands_for!("quilt_gpu_assertion": "__assert_fail" "__assert" "__assert_perror_fail");
