//! The conditions of `NVIDIA_REQUIRE_…`: groups in a row of which one must hold, in a group conditions with commas between
//! them that all must. It knows versions and brands and nothing about what they mean.

use std::cmp::Ordering;

use super::Version;
use super::toolkits;

/// What conditions are held against; what is not known fulfils every condition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) driver: Option<Version>,
    pub(super) cuda: Option<Version>,
    pub(super) arch: Option<Version>,
    pub(super) brand: Option<&'a str>,
}

/// What a requirement comes to.
#[derive(Debug, Default)]
pub(super) struct Outcome<'a> {
    /// Some group holds.
    pub(super) holds: bool,
    /// Some group would hold with the right CUDA.
    pub(super) but_for_cuda: bool,
    /// The first condition that does not hold.
    pub(super) failing: Option<&'a str>,
    /// The first condition that cannot be read; it counts as one that holds.
    pub(super) malformed: Option<&'a str>,
    /// The oldest CUDA that some group is content with.
    pub(super) least: Option<Version>,
}

/// Holds a requirement against what is known. One pass, since the runtime does this for every container with a GPU.
#[inline(never)]
pub(super) fn judge<'a>(value: &'a str, facts: &Facts<'_>) -> Outcome<'a> {
    let mut out = Outcome::default();
    let mut empty = true;
    for group in value.split(' ') {
        let (mut holds, mut but_for_cuda, mut wanted) = (true, true, None);
        for condition in group.split(',') {
            if condition.is_empty() {
                continue;
            }
            empty = false;
            let Some(read) = Condition::read(condition) else {
                out.malformed = out.malformed.or(Some(condition));
                continue;
            };
            let cuda = read.property == "cuda";
            if cuda && matches!(read.operator, b'>' | b'=') {
                wanted = wanted.max(Version::parse(read.value));
            }
            if !read.holds(facts) {
                out.failing = out.failing.or(Some(condition));
                holds = false;
                but_for_cuda &= cuda;
            }
        }
        if !group.is_empty() {
            out.holds |= holds;
            out.but_for_cuda |= but_for_cuda;
            if out.least.is_none() || wanted.is_some() && wanted < out.least {
                out.least = wanted;
            }
        }
    }
    out.holds |= empty;
    out
}

struct Condition<'a> {
    property: &'a str,
    /// `<`, `>`, `=` or `!`.
    operator: u8,
    /// Whether equal is enough.
    equal: bool,
    value: &'a str,
}

impl<'a> Condition<'a> {
    /// Nothing for what is no condition, and for one of a property that we know with a value that makes no sense.
    #[inline(never)]
    fn read(text: &'a str) -> Option<Self> {
        let at = text.bytes().position(|byte| matches!(byte, b'<' | b'>' | b'=' | b'!'))?;
        let operator = *text.as_bytes().get(at)?;
        let two = text.as_bytes().get(at + 1) == Some(&b'=');
        let (property, value) = (text.get(..at)?, text.get(at + 1 + usize::from(two)..)?);
        let known = match property {
            "" => false,
            "cuda" | "driver" | "arch" => Version::parse(value).is_some(),
            "brand" => matches!(operator, b'=' | b'!'),
            _ => true,
        };
        let spelled = if operator == b'=' { !two } else { operator != b'!' || two };
        (known && spelled && !value.is_empty()).then_some(Self {
            property,
            operator,
            equal: two || operator == b'=',
            value,
        })
    }

    #[inline(never)]
    fn holds(&self, facts: &Facts<'_>) -> bool {
        let has = match self.property {
            "cuda" => facts.cuda,
            "driver" => facts.driver,
            "arch" => facts.arch,
            "brand" => {
                let same = facts.brand.is_none_or(|brand| toolkits::is_family(self.value, brand));
                return facts.brand.is_none() || same == (self.operator == b'=');
            }
            _ => None,
        };
        let (Some(has), Some(wanted)) = (has, Version::parse(self.value)) else { return true };
        match (has.cmp(&wanted), self.operator) {
            (Ordering::Equal, b'!') => false,
            (Ordering::Equal, _) => self.equal,
            (Ordering::Less, operator) => matches!(operator, b'<' | b'!'),
            (Ordering::Greater, operator) => matches!(operator, b'>' | b'!'),
        }
    }
}
