//! The unwinder of a program that never unwinds: a panic prints its message and aborts.
//!
//! The static programs have no unwind tables (`no-unwind.ld`), so a backtrace could not take its first step. Said here,
//! where the optimiser sees it, this drops what would read debug information and print frames that are never found: a
//! seventh of the program. All names of the interface are here: one left out would link libgcc's, and all of these twice.
//! It must not be in a program that unwinds or loads libraries which do.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

/// `_URC_END_OF_STACK`: there is no frame to report.
const END_OF_STACK: c_int = 5;

// SAFETY: the C++ ABI's name and arguments; libgcc's function of this name is not linked.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_report: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}

/// Functions that only somebody who unwinds could call.
macro_rules! never {
    ($($name:ident)*) => {$(
        // SAFETY: the C++ ABI's name; whoever calls it does not get back, whatever was handed over.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> ! {
            std::process::abort()
        }
    )*};
}

never! {
    _Unwind_DeleteException _Unwind_FindEnclosingFunction _Unwind_ForcedUnwind _Unwind_GetCFA _Unwind_GetDataRelBase
    _Unwind_GetGR _Unwind_GetIP _Unwind_GetIPInfo _Unwind_GetLanguageSpecificData _Unwind_GetRegionStart
    _Unwind_GetTextRelBase _Unwind_RaiseException _Unwind_Resume _Unwind_Resume_or_Rethrow _Unwind_SetGR _Unwind_SetIP
}
