//! Keys: which container a lease or contract belongs to.

use sha2::{Digest, Sha256};

/// The digest of a low-level runtime's state root and a container id.
///
/// Ids repeat across containerd namespaces and engines; the state root tells them apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// The key of container `id` under the state root `root` (an absolute path).
    #[must_use]
    pub fn of(root: &str, id: &str) -> Self {
        let mut bytes = Vec::with_capacity(root.len() + id.len() + 1);
        bytes.extend_from_slice(root.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(id.as_bytes());
        let mut digest = sha256(&bytes);
        digest.truncate(32);
        Self(digest)
    }

    /// A key as it was written somewhere: 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fine = text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        fine.then(|| Self(text.to_owned()))
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 as 64 lower-case hexadecimal digits.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let digits = b"0123456789abcdef";
    let mut out = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from(digits.get(usize::from(nibble)).copied().unwrap_or(b'0')));
        }
    }
    out
}

/// Whether a container id may become a file name and an argument: what runc and crun accept, and no `.` or `..`.
#[must_use]
pub fn id_is_plain(id: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'+' | b'-' | b'.');
    !id.is_empty() && id.len() <= 1024 && id.bytes().all(fine) && id != "." && id != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_roots_two_keys() {
        assert_ne!(Key::of("/run/a", "x"), Key::of("/run/b", "x"));
        assert_ne!(Key::of("/run/a", "bx"), Key::of("/run/ab", "x"));
        assert_eq!(Key::parse(Key::of("/run/a", "x").as_str()), Some(Key::of("/run/a", "x")));
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn ids() {
        for (id, plain) in [
            ("a", true),
            ("a.b-c_d+e", true),
            ("", false),
            (".", false),
            ("..", false),
            ("../x", false),
            ("a/b", false),
            ("a b", false),
            ("a\n", false),
        ] {
            assert_eq!(id_is_plain(id), plain, "{id:?}");
        }
    }
}
