//! What an `exec` may have of capabilities: nothing that its container has not, by any way to write it.

use contract::capability::{capability_name, capability_number};
use contract::config::Profile;
use contract::exception::GUARDED_CAPABILITIES;

/// With this one takes open devices from any process that one sees.
const TRACING: &str = "SYS_PTRACE";
/// What it makes opens by the device list alone.
const MAKES_NODES: &str = "MKNOD";

/// Capabilities that reach devices, memory, filters or other processes past everything that a spec can say.
fn reaching() -> impl Iterator<Item = &'static str> {
    GUARDED_CAPABILITIES.iter().copied().filter(|name| *name != MAKES_NODES)
}

/// What a running container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Has {
    /// The bounding set of its first process.
    pub capabilities: u64,
    /// It sees processes that are not its own.
    pub sees_others: bool,
}

impl Has {
    /// What is assumed of a container that cannot be looked at.
    pub const NOTHING: Self = Self { capabilities: 0, sees_others: true };

    /// The capabilities, as a process document has them that shall have these and no others.
    #[must_use]
    pub fn listed(self) -> String {
        let here = (0..64).filter(|number| self.capabilities >> number & 1 == 1).filter_map(capability_name);
        let list = here.map(|name| format!("\"CAP_{name}\"")).collect::<Vec<_>>().join(",");
        format!(r#"{{"bounding":[{list}],"effective":[{list}],"permitted":[{list}]}}"#)
    }

    /// Whether a process that is added to the container would have more by this capability than the container itself, so
    /// that the device filter, or another container's open devices, were in its reach. In profile `hardened`: any more.
    #[must_use]
    pub fn gains_by(self, text: &str, profile: Profile) -> bool {
        let number = capability_number(text);
        let has = number.is_some_and(|number| number < 64 && self.capabilities >> number & 1 == 1);
        let reaches = |name: &str| reaching().any(|far| far == name) && (name != TRACING || self.sees_others);
        !has && (profile == Profile::Hardened || number.and_then(capability_name).is_some_and(reaches))
    }
}

/// Whether a process document may have anything that an `exec` is judged by. A look at the bytes, for almost all have nothing:
/// a working folder in procfs, a capability that reaches far, or an escape that could hide either.
#[must_use]
pub fn may_gain(process: &[u8], profile: Profile) -> bool {
    let has = |word: &[u8]| process.windows(word.len()).any(|here| here == word);
    profile == Profile::Hardened || has(b"proc") || has(b"\\u") || names_one(process)
}

/// Whether a process document may be silent on capabilities. A look at the bytes: engines write a list, and no space before it.
#[must_use]
pub fn may_be_silent(process: &[u8]) -> bool {
    let said: &[u8] = b"\"capabilities\":{";
    !process.windows(said.len()).any(|here| here == said)
}

/// Whether a text may name, or number, a capability that reaches past the boundary.
fn names_one(text: &[u8]) -> bool {
    let follows =
        |at: usize, word: &[u8]| text.get(at..at + word.len()).is_some_and(|here| here.eq_ignore_ascii_case(word));
    let named = |at: usize| reaching().any(|name| follows(at, name.as_bytes()));
    let numbered = |at: usize| text.get(at).is_some_and(u8::is_ascii_digit);
    text.iter().enumerate().any(|(at, byte)| match byte.to_ascii_lowercase() {
        b'"' => numbered(at + 1),
        b'c' => follows(at, b"CAP_") && numbered(at + 4),
        b's' | b'd' | b'b' | b'p' => named(at),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_gains_what_its_container_has_not() {
        let docker = Has { capabilities: 0xa804_25fb, sees_others: false };
        let among_others = Has { sees_others: true, ..docker };
        let privileged = Has { capabilities: (1 << 41) - 1, sees_others: true };
        for (text, has, standard, hardened) in [
            ("CAP_SYS_ADMIN", docker, true, true),
            ("21", docker, true, true),
            ("CAP_BPF", docker, true, true),
            ("CAP_NET_ADMIN", docker, false, true),
            ("CAP_MKNOD", docker, false, false),
            ("CAP_SYS_PTRACE", docker, false, true),
            ("CAP_SYS_PTRACE", among_others, true, true),
            ("CAP_OF_TOMORROW", docker, false, true),
            ("64", Has { capabilities: u64::MAX, ..docker }, false, true),
            ("CAP_SYS_ADMIN", privileged, false, false),
            ("CAP_CHOWN", Has::NOTHING, false, true),
            ("CAP_SYS_ADMIN", Has::NOTHING, true, true),
        ] {
            assert_eq!(has.gains_by(text, Profile::Standard), standard, "{text} {has:?}");
            assert_eq!(has.gains_by(text, Profile::Hardened), hardened, "{text} {has:?}");
        }
    }

    /// What an `exec` gets that says nothing of capabilities: its container's, all and no others.
    #[test]
    fn an_exec_that_is_silent_gets_its_containers() {
        let has = |capabilities| Has { capabilities, sees_others: false }.listed();
        let sets = |list: &str| format!(r#"{{"bounding":[{list}],"effective":[{list}],"permitted":[{list}]}}"#);
        assert_eq!(has(1 << 21 | 1), sets(r#""CAP_CHOWN","CAP_SYS_ADMIN""#));
        assert_eq!(Has::NOTHING.listed(), sets(""));
        for (process, silent) in [
            (r#"{"args":["sh"],"cwd":"/"}"#, true),
            (r#"{"args":["capabilities"],"cwd":"/"}"#, true),
            (r#"{"capabilities":null}"#, true),
            (r#"{"args":["sh"],"capabilities":{"bounding":[]}}"#, false),
        ] {
            assert_eq!(may_be_silent(process.as_bytes()), silent, "{process}");
        }
    }

    /// The cheap look overlooks nothing that the reading of names finds.
    #[test]
    fn the_cheap_look_sees_every_spelling() {
        let plain =
            r#"{"args":["sh","-c","sleep 1; \\x"],"cwd":"/","capabilities":{"bounding":["CAP_CHOWN","CAP_SETPCAP"]}}"#;
        assert!(!may_gain(plain.as_bytes(), Profile::Standard));
        assert!(may_gain(plain.as_bytes(), Profile::Hardened));
        assert!(names_one(b"[\"21\"]") && names_one(b"CAP_21") && names_one(b"cap_0x15") && !names_one(b"2\"x"));
        let names = reaching();
        let spelled = names.flat_map(|name| {
            let number = capability_number(name).unwrap();
            let lower = name.to_lowercase();
            [
                format!("CAP_{name}"),
                format!("cap_{lower}"),
                lower,
                format!("{number}"),
                format!("CAP_{number:#x}"),
                format!("{number:#o}").replace('o', ""),
            ]
        });
        for text in
            spelled.chain(["/proc/self/fd/7", "/\\u0070roc/self/fd/7", "CAP_SYS\\u005fADMIN"].map(str::to_owned))
        {
            let process = plain.replace("CAP_CHOWN", &text);
            assert!(may_gain(process.as_bytes(), Profile::Standard), "{text}");
        }
    }
}
