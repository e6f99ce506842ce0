//! The few raw calls of the harness: device nodes, the dynamic loader, descriptors that are sent.
//!
//! The only module with `unsafe`. It decides nothing and keeps no state.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// Makes a device node (`b` or `c`), with exactly this mode whatever the umask is.
pub(crate) fn make_node(path: &Path, kind: char, number: (u64, u64), mode: u32) -> io::Result<()> {
    let flag = if kind == 'b' { SFlag::S_IFBLK } else { SFlag::S_IFCHR };
    mknod(path, flag, Mode::empty(), makedev(number.0, number.1))?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// An extended attribute of a file, links not followed; nothing where it has none.
#[must_use]
pub fn attribute(path: &Path, name: &str) -> Option<String> {
    let file = CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
    let name = CString::new(name).ok()?;
    let mut value = vec![0_u8; 4096];
    // SAFETY: both names end with NUL, and the kernel writes at most as many bytes as we say.
    let got = unsafe { libc::lgetxattr(file.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(got).ok()?);
    String::from_utf8(value).ok()
}

/// The head of glibc's `struct link_map` (link.h), which is part of its ABI.
#[repr(C)]
struct LinkMap {
    load_address: usize,
    name: *const c_char,
}

const RTLD_DI_LINKMAP: c_int = 2;

unsafe extern "C" {
    fn dlinfo(handle: *mut c_void, request: c_int, out: *mut c_void) -> c_int;
}

/// Loads a shared library as a program would and says which file the loader took; on failure the
/// loader's own words. The library stays loaded.
pub(crate) fn load_library(name: &str) -> Result<PathBuf, String> {
    let c_name = CString::new(name).map_err(|e| e.to_string())?;
    // SAFETY: a NUL-ended name; the library's constructors run, which is what the probe asks for.
    let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(loader_error());
    }
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: a live handle, and for this request `out` points to a `struct link_map *`.
    let status = unsafe { dlinfo(handle, RTLD_DI_LINKMAP, (&raw mut map).cast()) };
    if status != 0 || map.is_null() {
        return Err(loader_error());
    }
    // SAFETY: the handle is never closed, so the map and its NUL-ended name live on.
    let path = unsafe { CStr::from_ptr((*map).name) };
    Ok(PathBuf::from(path.to_string_lossy().into_owned()))
}

fn loader_error() -> String {
    // SAFETY: dlerror returns null or a NUL-ended string valid until this thread's next dl call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader gives no reason".into();
    }
    // SAFETY: not null, see above; copied at once.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// Most arguments of a call by [`call`]: `cuLaunchKernel` has eleven.
pub(crate) const ARGUMENTS: usize = 11;

type Raw = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize) -> c_int;

/// Calls a function of a library that was loaded, with whole numbers and addresses; arguments beyond those that the
/// function has are ignored by the C calling conventions of x86-64 and arm64.
pub(crate) fn call(library: &str, function: &str, arguments: &[usize]) -> Result<c_int, String> {
    let names = [library, function].map(CString::new);
    let [Ok(library), Ok(name)] = names else { return Err(format!("{function} cannot be a name")) };
    // SAFETY: a NUL-ended name; a library that is loaded already only counts one more user.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(loader_error());
    }
    // SAFETY: a live handle and a NUL-ended name.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if symbol.is_null() {
        return Err(loader_error());
    }
    let mut given = [0; ARGUMENTS];
    if arguments.len() > given.len() {
        return Err(format!("{function} would get {} arguments", arguments.len()));
    }
    given[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f, g, h, i, j, k] = given;
    // SAFETY: not null; functions of CUDA's driver interface take integers and pointers in registers and on the stack, and
    // give an int. That the addresses live through the call is the caller's: `cuda` keeps what it passes on its own stack.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Raw>(symbol)(a, b, c, d, e, f, g, h, i, j, k) })
}

/// Waits for a child, and gives its raw status with the processor time that it and those it waited for used.
pub(crate) fn wait_for(pid: u32) -> io::Result<(c_int, std::time::Duration)> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: a struct of integers, for which zeros are values.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid for the call, which writes them.
    if unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) } != pid {
        return Err(io::Error::last_os_error());
    }
    let time = |t: libc::timeval| {
        let micros = u64::try_from(t.tv_sec * 1_000_000 + t.tv_usec).unwrap_or(0);
        std::time::Duration::from_micros(micros)
    };
    Ok((status, time(used.ru_utime) + time(used.ru_stime)))
}

/// The descriptor that the next one to connect sends: a runtime's console.
///
/// # Errors
/// None comes.
pub fn received(listener: &UnixListener) -> io::Result<OwnedFd> {
    let (stream, _) = listener.accept()?;
    let (mut bytes, mut control) = ([0_u8; 256], [0_u64; 8]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a struct of integers and pointers, for which zeros are values.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: all that the message points to lives to the end, and is aligned; the kernel makes the descriptor for us, and
    // nobody else knows it.
    unsafe {
        if libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        if head.is_null() || (*head).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::other("a message without a descriptor"));
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<c_int>().read_unaligned()))
    }
}
