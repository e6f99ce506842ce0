//! Which users are one: the ids that `/etc/subuid` gives a user are that user's, though the kernel tells them apart. Decides on
//! the texts of two files; reads them where only root writes them, and asks no directory service, which could keep all waiting.

use std::path::Path;

use node::read_trusted;

/// Most bytes of either file.
const MOST: usize = 4 << 20;

/// The node's accounts, and whose other ids are.
#[derive(Default)]
pub(crate) struct Users {
    accounts: String,
    ranges: String,
}

impl Users {
    /// As the node has them now. A file that is not to be trusted makes nobody an account.
    pub(crate) fn read() -> Self {
        let text = |path| {
            let read = read_trusted(Path::new(path), MOST).ok();
            read.map(|read| String::from_utf8_lossy(&read.bytes).into_owned()).unwrap_or_default()
        };
        Self { accounts: text("/etc/passwd"), ranges: text("/etc/subuid") }
    }

    /// The user that an id is of, and whether that user has an account. An account's own id is never another's.
    pub(crate) fn of(&self, uid: u32) -> (u32, bool) {
        if self.is_account(uid) {
            return (uid, true);
        }
        let owner = self.ranges.lines().find_map(|line| {
            let mut fields = line.trim().split(':');
            let (owner, first, many) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            let inside = uid.checked_sub(first).is_some_and(|beyond: u32| beyond < many);
            // A name may be digits; where no account has it they are the id itself.
            inside.then(|| self.named(owner).or_else(|| owner.parse().ok()))?
        });
        owner.map_or((uid, false), |owner| (owner, self.is_account(owner)))
    }

    fn is_account(&self, uid: u32) -> bool {
        self.accounts().any(|(_, id)| id == uid)
    }

    fn named(&self, name: &str) -> Option<u32> {
        self.accounts().find(|(known, _)| *known == name).map(|(_, uid)| uid)
    }

    fn accounts(&self) -> impl Iterator<Item = (&str, u32)> {
        self.accounts.lines().filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?, fields.nth(1)?.parse().ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_are_their_owners() {
        let users = Users {
            accounts: "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n".into(),
            ranges: "# note\nalice:100000:65536\n1001:300000:10\nalice:900:200\ngone:500000:10\n2000:600000:1\nroot:700000:1\n\
                     bob:4294967290:4294967295\nbob:800000:x\n"
                .into(),
        };
        for (uid, owner, is_account) in [
            (1000, 1000, true),
            (100_000, 1000, true),
            (165_535, 1000, true),
            (165_536, 165_536, false),
            (300_009, 1001, true),
            (300_010, 300_010, false),
            (1001, 1001, true), // An account in another's range stays itself.
            (950, 1000, true),
            (500_001, 500_001, false),
            (600_000, 2000, false),
            (700_000, 0, true),
            (u32::MAX, 1001, true),
            (800_000, 800_000, false),
        ] {
            assert_eq!(users.of(uid), (owner, is_account), "{uid}");
        }
        assert_eq!(Users::default().of(7), (7, false));
    }
}
