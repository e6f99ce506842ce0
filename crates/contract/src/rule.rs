//! One device rule of `linux.resources.devices`, with its numbers checked.

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Type `a`, or no type: every device, whatever numbers stand beside it.
    All,
    /// Character devices.
    Char,
    /// Block devices.
    Block,
}

/// Read, write, make: the letters of `access`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `m`: mknod. Making a node opens nothing.
    pub make: bool,
}

impl Access {
    /// `rwm`
    pub const ALL: Self = Self { read: true, write: true, make: true };
    /// `rw`
    pub const OPEN: Self = Self { read: true, write: true, make: false };

    /// Whether a device could be opened with it.
    #[must_use]
    pub fn opens(self) -> bool {
        self.read || self.write
    }

    /// The letters in the kernel's order.
    #[must_use]
    pub fn letters(self) -> String {
        [(self.read, 'r'), (self.write, 'w'), (self.make, 'm')]
            .into_iter()
            .filter(|(on, _)| *on)
            .map(|(_, c)| c)
            .collect()
    }
}

/// A device rule. `None` for a number is the wildcard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Allow or deny.
    pub allow: bool,
    /// What it is about.
    pub kind: Kind,
    /// Device major.
    pub major: Option<u32>,
    /// Device minor.
    pub minor: Option<u32>,
    /// What is allowed or denied.
    pub access: Access,
}

impl Rule {
    /// The rule that denies everything.
    pub const DENY_ALL: Self = Self { allow: false, kind: Kind::All, major: None, minor: None, access: Access::ALL };
    /// The rule that allows everything.
    pub const ALLOW_ALL: Self = Self { allow: true, kind: Kind::All, major: None, minor: None, access: Access::ALL };

    /// `c MAJOR:MINOR rw`
    #[must_use]
    pub fn open_char(major: u32, minor: u32) -> Self {
        Self { allow: true, kind: Kind::Char, major: Some(major), minor: Some(minor), access: Access::OPEN }
    }

    /// `c MAJOR:MINOR rwm` denied; `None` denies the whole major.
    #[must_use]
    pub fn deny_char(major: u32, minor: Option<u32>) -> Self {
        Self { allow: false, kind: Kind::Char, major: Some(major), minor, access: Access::ALL }
    }

    /// Whether the rule speaks about this character device.
    #[must_use]
    pub fn matches_char(&self, major: u32, minor: u32) -> bool {
        match self.kind {
            Kind::All => true,
            Kind::Block => false,
            Kind::Char => self.has(major, minor),
        }
    }

    /// Whether the rule speaks about this block device.
    #[must_use]
    pub fn matches_block(&self, major: u32, minor: u32) -> bool {
        match self.kind {
            Kind::All => true,
            Kind::Block => self.has(major, minor),
            Kind::Char => false,
        }
    }

    fn has(&self, major: u32, minor: u32) -> bool {
        self.major.is_none_or(|m| m == major) && self.minor.is_none_or(|m| m == minor)
    }
}

impl std::fmt::Display for Rule {
    /// As the kernel writes it in `devices.list`: `c 195:0 rw`, `a *:* rwm`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Kind::All => 'a',
            Kind::Char => 'c',
            Kind::Block => 'b',
        };
        let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        write!(f, "{kind} {}:{} {}", number(self.major), number(self.minor), self.access.letters())
    }
}
