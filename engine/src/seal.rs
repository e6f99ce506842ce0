//! Runs on from a sealed copy in memory, before anything of a container is near (CVE-2019-5736).
//!
//! A process that enters a container can be reached there through `/proc/<pid>/exe`: what is behind that name must be
//! nothing that the host runs again, and nothing that can be written. Only verbs that enter a container pay for the copy.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

const OWN: &str = "/proc/self/exe";

/// Comes back where this is the sealed copy; otherwise makes one and becomes it.
///
/// # Errors
/// What failed; nothing of a container has happened then.
pub(crate) fn ensure() -> Result<(), String> {
    let failed = |what: &str, cause: &dyn std::fmt::Display| format!("cannot {what} a sealed copy of {OWN}: {cause}");
    let mut own = File::open(OWN).map_err(|cause| failed("make", &cause))?;
    let all = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    if fcntl(&own, FcntlArg::F_GET_SEALS).is_ok_and(|seals| SealFlag::from_bits_truncate(seals).contains(all)) {
        return Ok(());
    }
    let mut copy = File::from(memory().map_err(|cause| failed("make", &cause))?);
    std::io::copy(&mut own, &mut copy).map_err(|cause| failed("write", &cause))?;
    fcntl(&copy, FcntlArg::F_ADD_SEALS(all)).map_err(|cause| failed("seal", &cause))?;
    let words = std::env::args_os().map(|word| CString::new(word.into_vec()));
    let words: Vec<CString> = words.collect::<Result<_, _>>().map_err(|cause| failed("run", &cause))?;
    let environment = std::env::vars_os().map(|(mut key, value)| {
        key.push("=");
        key.push(value);
        CString::new(key.into_vec())
    });
    let environment: Vec<CString> = environment.collect::<Result<_, _>>().map_err(|cause| failed("run", &cause))?;
    let path = CString::new(format!("/proc/self/fd/{}", copy.as_raw_fd())).map_err(|cause| failed("run", &cause))?;
    match nix::unistd::execve(&path, &words, &environment) {
        Ok(never) => match never {},
        Err(cause) => Err(failed("run", &cause)),
    }
}

/// A file in memory that may be run. Kernels before 6.3 do not know the word for that, and need none.
fn memory() -> nix::Result<std::os::fd::OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    match memfd_create("quilt-gpu-engine", flags | MFdFlags::from_bits_retain(MFD_EXEC)) {
        Err(Errno::EINVAL) => memfd_create("quilt-gpu-engine", flags),
        other => other,
    }
}

/// `MFD_EXEC` of `linux/memfd.h`.
const MFD_EXEC: u32 = 0x10;
