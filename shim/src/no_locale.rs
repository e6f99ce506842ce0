//! The C library without languages, character sets and printing. Its messages are translated from files, and what prints them
//! knows wide characters: by way of error texts nobody reads that brings the loaders of tables and of more libraries, an eighth
//! of a static program. Rust formats all that is said here.
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

/// Stands for `fprintf(3)`, which `malloc_stats(3)` alone names here, and nobody calls: it formats wide characters, so it would
/// bring every conversion between character sets and the loader of those that are files. Nothing is printed, which is said.
// SAFETY: a name of ours; no argument is looked at, so that it does not matter that there may be more.
#[unsafe(no_mangle)]
extern "C" fn quilt_gpu_prints_nothing() -> c_int {
    -1
}

unsafe extern "C" {
    /// `strerrordesc_np(3)` (glibc 2.32): what an error number means, in English; null for a number that is none.
    fn strerrordesc_np(number: c_int) -> *const c_char;
}

/// Stands for GNU's `strerror_r(3)`, by which the loader of libraries would say why it failed.
// SAFETY: a name of ours; what it gives is never freed and need not lie in the buffer.
#[unsafe(no_mangle)]
extern "C" fn quilt_gpu_described(number: c_int, _buffer: *mut c_char, _length: usize) -> *const c_char {
    // SAFETY: it takes any number.
    let told = unsafe { strerrordesc_np(number) };
    if told.is_null() { c"unknown error".as_ptr() } else { told }
}

/// Stands for POSIX's `strerror_r(3)`, which formats numbers that are no error's, and so brings all of `printf(3)` as well.
// SAFETY: a name of ours; the standard library calls it with a buffer of at least `length` bytes, which is above 0.
#[unsafe(no_mangle)]
unsafe extern "C" fn quilt_gpu_meaning(number: c_int, buffer: *mut c_char, length: usize) -> c_int {
    let meaning = quilt_gpu_described(number, buffer, length);
    for at in 0..length {
        // SAFETY: `at` lies in the buffer, and in the text, which ends with the first zero byte.
        let byte = unsafe { *meaning.add(at) };
        // SAFETY: as above.
        unsafe { *buffer.add(at) = if at + 1 == length { 0 } else { byte } };
        if byte == 0 {
            break;
        }
    }
    0
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
stands_for!("quilt_gpu_assertion": "__wcsmbs_load_conv" "__wcsmbs_clone_conv" "__wcsmbs_named_conv");
stands_for!("quilt_gpu_assertion": "__libc_dynarray_at_failure");
stands_for!("quilt_gpu_prints_nothing": "fprintf");
stands_for!("quilt_gpu_meaning": "__xpg_strerror_r");
stands_for!("quilt_gpu_described": "__strerror_r" "strerror_r");

// The conversions of the C locale's wide characters, which its table of characters points to, and which only wide streams use.
// Empty, they bring no conversion between character sets.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.__wcsmbs_gconv_fcts_c, \"aw\", %progbits",
    ".weak __wcsmbs_gconv_fcts_c",
    ".type __wcsmbs_gconv_fcts_c, %object",
    ".balign 16",
    "__wcsmbs_gconv_fcts_c: .zero 64",
    ".size __wcsmbs_gconv_fcts_c, 64",
    ".popsection",
);
