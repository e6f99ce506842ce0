//! Device rules: the tenant's list read strictly, judged, and the lists that are written instead.

use contract::json::{Node, Value, pointer_token};
use contract::rule::{Access, Kind, Rule};
use contract::{Code, Refusal};

use crate::disks;
use crate::findings::{Findings, MOST_ITEMS};
use crate::numbers::{DRM, DRM_MINORS, MEM, MISC, Numbers};
use crate::setting::Setting;
use crate::system::System;

const AT: &str = "/linux/resources/devices";
const FIELDS: &[&str] = &["allow", "type", "major", "minor", "access"];
/// The kernel's `dev_t` has 12 bits for a major and 20 for a minor (`include/linux/kdev_t.h`).
pub(crate) const MAX_MAJOR: u32 = 0xFFF;
pub(crate) const MAX_MINOR: u32 = 0xF_FFFF;
/// In the place of a rule that was refused, so that the others keep their index.
const INERT: Rule = Rule { allow: false, kind: Kind::Block, major: None, minor: None, access: NONE };
const NONE: Access = Access { read: false, write: false, make: false };

/// Reads `linux.resources.devices`. A rule that runtimes could read differently is refused. Without `allow` it is a deny.
///
/// Without `access`, runc refuses the rule, crun 1.x reads past the end or writes nonsense, youki drops it: so an allow
/// counts as allowing everything and a deny as denying nothing, and no runtime is more open than that. A deny with other
/// letters, as runc's own tests have it, denies nothing either.
pub(crate) fn read(spec: &Node<'_>, out: &mut Findings) -> Vec<Rule> {
    let list = out.list(spec.path(&["linux", "resources", "devices"]), MOST_ITEMS, &AT);
    let read = |(index, node): (usize, &Node<'_>)| {
        rule(node).unwrap_or_else(|(field, why)| {
            let at = if field.is_empty() {
                format!("{AT}/{index}")
            } else {
                format!("{AT}/{index}/{}", pointer_token(&field))
            };
            let help =
                "write type c or b, whole numbers for major and minor, and access from the letters r, w, m, each once";
            let rule = if why == UNKNOWN { "json-unknown" } else { "cgroup-rule-shape" };
            let message = format!("runtimes read this device rule differently: {why}");
            out.refuse(Refusal::new(Code::UnsafeSpec, rule, message, help).at(at, written(node.get(&field))));
            INERT
        })
    };
    list.iter().enumerate().map(read).collect()
}

pub(crate) const UNKNOWN: &str = "the field is not part of the OCI runtime spec";

/// A scalar as it was written, for people.
pub(crate) fn written(node: Option<&Node<'_>>) -> String {
    match node.map(|node| &node.value) {
        Some(Value::String(text)) => text.to_string(),
        Some(Value::Number(text)) => (*text).to_owned(),
        Some(Value::Bool(value)) => value.to_string(),
        _ => String::new(),
    }
}

/// A field, and what is wrong with it.
pub(crate) type Wrong = (String, &'static str);

pub(crate) fn known_fields(node: &Node<'_>, fields: &[&str]) -> Result<(), Wrong> {
    let known = |key: &str| fields.contains(&key);
    match node.members().iter().find(|member| !known(&member.key)) {
        Some(member) => Err((member.key.to_string(), UNKNOWN)),
        None => Ok(()),
    }
}

fn rule(node: &Node<'_>) -> Result<Rule, Wrong> {
    known_fields(node, FIELDS)?;
    let wrong = |field: &str, why| (field.to_owned(), why);
    if !matches!(node.value, Value::Object(_)) {
        return Err(wrong("", "it is not an object"));
    }
    let allow = node.get("allow").map_or(Some(false), Node::as_bool);
    let allow = allow.ok_or_else(|| wrong("allow", "it does not say true or false"))?;
    let kind = match node.get("type").map(Node::as_str) {
        None | Some(Some("a")) => Kind::All,
        Some(Some("c")) => Kind::Char,
        Some(Some("b")) => Kind::Block,
        _ => return Err(wrong("type", "the type is not a, c or b")),
    };
    let access = match node.get("access").map(Node::as_str) {
        None | Some(Some("")) if allow => Access::ALL,
        None | Some(Some("")) => NONE,
        Some(Some(letters)) => access(letters)
            .or(if allow { None } else { Some(NONE) })
            .ok_or_else(|| wrong("access", "access is not some of the letters r, w, m"))?,
        Some(None) => return Err(wrong("access", "access is not a string")),
    };
    Ok(Rule { allow, kind, major: number(node, "major", MAX_MAJOR)?, minor: number(node, "minor", MAX_MINOR)?, access })
}

/// A device number of a rule; absent or negative is the wildcard.
fn number(node: &Node<'_>, field: &'static str, most: u32) -> Result<Option<u32>, Wrong> {
    let Some(value) = node.get(field) else {
        return Ok(None);
    };
    match value.as_i64() {
        Some(n) if n < 0 => Ok(None),
        Some(n) => match u32::try_from(n) {
            Ok(n) if n <= most => Ok(Some(n)),
            _ => Err((field.to_owned(), "the number is larger than device numbers are")),
        },
        None => Err((field.to_owned(), "the number is not a whole one")),
    }
}

/// Letters, each at most once: the kernel reads no more than three.
fn access(letters: &str) -> Option<Access> {
    let mut access = NONE;
    for letter in letters.chars() {
        let bit = match letter {
            'r' => &mut access.read,
            'w' => &mut access.write,
            'm' => &mut access.make,
            _ => return None,
        };
        if std::mem::replace(bit, true) {
            return None;
        }
    }
    Some(access)
}

/// A line of a live cgroup's `devices.list`, as the kernel writes it: `c 195:0 rw`, `a *:* rwm`.
#[must_use]
pub fn parse_list_line(line: &str) -> Option<Rule> {
    let mut words = line.split_ascii_whitespace();
    let (kind, numbers, letters) = (words.next()?, words.next()?, words.next()?);
    let kind = match kind {
        "a" => Kind::All,
        "c" => Kind::Char,
        "b" => Kind::Block,
        _ => return None,
    };
    let (major, minor) = numbers.split_once(':')?;
    let number = |text: &str| if text == "*" { Some(None) } else { text.parse().ok().map(Some) };
    let rule = Rule { allow: true, kind, major: number(major)?, minor: number(minor)?, access: access(letters)? };
    words.next().is_none().then_some(rule)
}

/// The part of a list that counts: from its last deny of everything on. What stands before it counts in no reading.
fn live(rules: &[Rule]) -> usize {
    rules.iter().rposition(|rule| *rule == Rule::DENY_ALL).unwrap_or(0)
}

/// The first rule in force that allows everything.
pub(crate) fn allows_all(rules: &[Rule]) -> Option<usize> {
    let start = live(rules);
    let found = rules.iter().skip(start).position(|rule| rule.allow && rule.kind == Kind::All);
    found.map(|index| start + index)
}

/// Judges the list, and says which one must be written instead; where a GPU was asked for, which one counts instead.
pub(crate) fn judge(setting: &Setting<'_>, rules: &[Rule], out: &mut Findings) -> Option<Vec<Rule>> {
    let start = live(rules);
    let mut all = allows_all(rules);
    for (index, rule) in rules.iter().enumerate().skip(start) {
        if rule.allow && rule.kind == Kind::Char && rule.access.opens() {
            match setting.machine.is_met_by(rule) {
                // For every major: as good as everything.
                Ok(true) if rule.major.is_none() && setting.excuses(WILDCARD) => {
                    out.add(setting.weigh(names_gpu(setting, rule)), &format_args!("{AT}/{index}"), "");
                    all = all.or(Some(index));
                }
                Ok(true) => out.refuse(names_gpu(setting, rule).at(format!("{AT}/{index}"), rule.to_string())),
                Ok(false) => {}
                Err(why) => out.blind(&why),
            }
        }
        // One for everything is so whatever letters it has.
        if rule.allow && (rule.access.opens() || rule.kind == Kind::All) {
            out.add(disks::opened(setting, rule), &format_args!("{AT}/{index}"), "");
        }
    }
    if let Some(index) = all {
        return instead_of_all(setting, index, rules, out);
    }
    // Not every runtime starts from closed by itself.
    let closed = rules.get(start) == Some(&Rule::DENY_ALL) || setting.case.low_level.starts_closed();
    if closed || setting.case.gpu_asked {
        return None;
    }
    if !setting.machine.filters() {
        out.note("cgroup-no-filter", AT, "no device filter can be attached inside a user namespace");
        return None;
    }
    out.note("cgroup-canon", AT, "a deny of everything was put in front of the device list");
    let tenant = rules.iter().filter(|rule| rule.access != NONE);
    Some([Rule::DENY_ALL].iter().chain(tenant).copied().collect())
}

const WILDCARD: &str = "cgroup-wildcard";

fn names_gpu(setting: &Setting<'_>, rule: &Rule) -> Refusal {
    let (name, message) = match rule.major {
        Some(_) => ("cgroup-gpu-rule", "this device rule lets the container open a GPU"),
        None => (WILDCARD, "this device rule is for every major, so it lets the container open a GPU"),
    };
    Refusal::new(Code::TenantGpuRule, name, message, setting.way_out("the rule"))
}

/// A list that allows everything: refused, or narrowed to everything but GPUs.
fn instead_of_all(setting: &Setting<'_>, index: usize, rules: &[Rule], out: &mut Findings) -> Option<Vec<Rule>> {
    let at = format!("{AT}/{index}");
    if setting.case.gpu_asked || setting.hardened() {
        let value = rules.get(index).map(ToString::to_string).unwrap_or_default();
        match setting.weigh(all_refused(setting)) {
            Err(refusal) => {
                out.refuse(refusal.at(at, value));
                return None;
            }
            excused => out.add(excused, &at, &value),
        }
    }
    if setting.privileged {
        out.note(
            "privileged",
            at.as_str(),
            "a privileged container can undo what keeps it from GPUs: this is not a boundary",
        );
    }
    let narrowed = setting.machine.numbers().and_then(|numbers| {
        if setting.case.gpu_asked {
            all_known_but_gpus(setting.machine.system, numbers)
        } else {
            Ok(all_but_gpus(numbers))
        }
    });
    match narrowed {
        Ok(narrowed) => (narrowed != rules).then(|| {
            out.note("cgroup-canon", at, "a rule that allows every device now leaves GPUs out");
            narrowed
        }),
        Err(why) => {
            out.blind(&why);
            None
        }
    }
}

/// Why a list that allows everything is refused.
fn all_refused(setting: &Setting<'_>) -> Refusal {
    if !setting.privileged {
        let message = "this device rule allows every device, GPUs among them";
        return Refusal::new(Code::TenantGpuRule, WILDCARD, message, "list the devices that the container needs");
    }
    let message = if setting.case.gpu_asked {
        "a privileged container reaches every GPU, not only those that it would be granted"
    } else {
        "the node's policy does not start privileged containers"
    };
    let help = "start it without privileged mode, with the capabilities and devices that it needs";
    Refusal::new(Code::UnsafeSpec, "privileged", message, help)
}

/// The list that allows everything but GPUs, in the one order that reads the same everywhere.
fn all_but_gpus(numbers: &Numbers) -> Vec<Rule> {
    let mut list = vec![Rule::DENY_ALL, Rule::ALLOW_ALL];
    list.extend(numbers.denies());
    list
}

/// Minors of the majors that GPUs share, as `devices.txt` has them: of memory those that are no memory, and the usual ones of
/// misc, of which some are there only when first opened.
const MEMORY: [u32; 6] = [3, 5, 7, 8, 9, 11];
const USUAL_MISC: [u32; 18] =
    [130, 135, 144, 183, 200, 203, 223, 228, 229, 231, 232, 234, 235, 236, 237, 238, 239, 242];

/// A list that allows all devices of this machine but GPUs, without a rule that a single GPU would have to be taken out of:
/// every major that holds none, and the other minors of those that GPUs share.
fn all_known_but_gpus(system: &dyn System, numbers: &Numbers) -> Result<Vec<Rule>, String> {
    let mut list = vec![Rule::DENY_ALL, Rule { kind: Kind::Block, ..Rule::ALLOW_ALL }];
    let mut allow = |major, minor: Option<u32>| {
        let rule = Rule { kind: Kind::Char, major: Some(major), minor, ..Rule::ALLOW_ALL };
        if !numbers.are_met_by(&rule) && !list.contains(&rule) {
            list.push(rule);
        }
    };
    for (_, major) in system.majors()?.iter().filter(|(_, major)| !matches!(*major, MEM | MISC | DRM)) {
        allow(*major, None);
    }
    MEMORY.iter().for_each(|minor| allow(MEM, Some(*minor)));
    USUAL_MISC.iter().for_each(|minor| allow(MISC, Some(*minor)));
    system.misc()?.iter().for_each(|(_, minor)| allow(MISC, Some(*minor)));
    system.drm_minors(DRM_MINORS).iter().for_each(|minor| allow(DRM, Some(*minor)));
    Ok(list)
}

/// The list of a container with a contract: everything denied, then what the tenant's list allows and is no GPU, then
/// exactly the granted nodes. It has no rule of type `a` besides the first and no other deny, so that it reads the same
/// everywhere; of the tenant's allows it keeps the letters that no later deny touches.
#[must_use]
pub fn granted_rules(tenant: &[Rule], nodes: &[(u32, u32)], numbers: &Numbers) -> Vec<Rule> {
    let tenant = tenant.get(live(tenant)..).unwrap_or_default();
    let mut list = vec![Rule::DENY_ALL];
    for (index, rule) in tenant.iter().enumerate() {
        let later = tenant.get(index + 1..).unwrap_or_default();
        let kept = Rule { access: left(rule, later), ..*rule };
        let gpu = kept.kind == Kind::Char && (kept.access.opens() || kept.major.is_some()) && numbers.are_met_by(&kept);
        if kept.allow && kept.kind != Kind::All && kept.access != NONE && !gpu && !list.contains(&kept) {
            list.push(kept);
        }
    }
    for &(major, minor) in nodes {
        let node = Rule::open_char(major, minor);
        if !list.contains(&node) {
            list.push(node);
        }
    }
    list
}

/// The letters of an allow that no later deny touches.
fn left(allow: &Rule, later: &[Rule]) -> Access {
    let meets = |a: Option<u32>, b: Option<u32>| a.is_none() || b.is_none() || a == b;
    let denies = later.iter().filter(|deny| {
        let numbers = meets(deny.major, allow.major) && meets(deny.minor, allow.minor);
        !deny.allow && (deny.kind == Kind::All || (deny.kind == allow.kind && numbers))
    });
    denies.fold(allow.access, |left, deny| {
        // The kernel takes a deny of type `a` for a deny of everything, whatever its letters.
        let denied = if deny.kind == Kind::All { Access::ALL } else { deny.access };
        Access { read: left.read && !denied.read, write: left.write && !denied.write, make: left.make && !denied.make }
    })
}
