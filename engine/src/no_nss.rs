//! Users are looked up in `/etc/passwd` and nowhere else.
//!
//! libcontainer asks the C library for the home of a container's user while its root is the container's. The C library would
//! load modules then that the image names in `nsswitch.conf`, and with them code of the image, before the process has let go
//! of what it holds of the host (CVE-2019-14271). So that function is ours in this program.
#![allow(unsafe_code)]

use std::io::Read;

/// Most bytes of the file that are read.
const MOST: u64 = 1 << 20;

/// The name and home of a user.
fn user(text: &str, uid: u32) -> Option<(&str, u32, &str)> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let id: u32 = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (id == uid).then_some((name, group, fields.nth(1)?))
    })
}

/// `getpwuid_r(3)`, without modules.
///
/// # Safety
/// As in C: the pointers are good for what they stand for, `buffer` for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getpwuid_r(
    uid: libc::uid_t,
    entry: *mut libc::passwd,
    buffer: *mut libc::c_char,
    length: libc::size_t,
    result: *mut *mut libc::passwd,
) -> libc::c_int {
    // SAFETY: the caller gives a place for the answer.
    unsafe { *result = std::ptr::null_mut() };
    let mut bytes = Vec::new();
    let read = std::fs::File::open("/etc/passwd").and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let (Ok(_), Some((name, group, home))) = (read, user(&text, uid)) else { return 0 };
    if length < name.len() + home.len() + 3 {
        return libc::ERANGE;
    }
    // SAFETY: the buffer has room for both texts, a NUL behind each, and one more for the empty text; the caller keeps it as
    // long as the entry.
    unsafe {
        let home_at = buffer.add(name.len() + 1);
        let empty = home_at.add(home.len() + 1);
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), buffer, name.len());
        *buffer.add(name.len()) = 0;
        std::ptr::copy_nonoverlapping(home.as_ptr().cast(), home_at, home.len());
        *home_at.add(home.len()) = 0;
        *empty = 0;
        *entry = libc::passwd {
            pw_name: buffer,
            pw_passwd: empty,
            pw_uid: uid,
            pw_gid: group,
            pw_gecos: empty,
            pw_dir: home_at,
            pw_shell: empty,
        };
        *result = entry;
    }
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn users_are_found_by_their_number() {
        let text = "root:x:0:0:root:/root:/bin/sh\n# a:x:7:7::/no:\nbroken\nx:y\nuser:x:7:8::/home/u:/bin/sh\nother:x:7:9::/b:\n";
        assert_eq!(super::user(text, 0), Some(("root", 0, "/root")));
        assert_eq!(super::user(text, 7), Some(("user", 8, "/home/u")));
        assert_eq!(super::user(text, 9), None);
        // Through the C library's name, as libcontainer asks.
        let root = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(0)).unwrap().unwrap();
        assert_eq!((root.name.as_str(), root.dir.to_str(), root.shell.to_str()), ("root", Some("/root"), Some("")));
    }
}
