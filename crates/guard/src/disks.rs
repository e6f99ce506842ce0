//! Disks that the machine's own files lie on. Who opens one writes these files past every mount and every permission, programs
//! that root runs among them. Disks that nobody has mounted are a tenant's to have.

use contract::rule::{Kind, Rule};
use contract::{Code, Refusal};

use crate::findings::Verdict;
use crate::paths;
use crate::setting::Setting;
use crate::system::Object;

const RULE: &str = "device-disk";
const MESSAGE: &str =
    "files of this node lie on this disk, and the container reaches them past every mount: this is not a boundary";

/// Judges a rule that lets the container open block devices.
pub(crate) fn opened(setting: &Setting<'_>, rule: &Rule) -> Verdict {
    // A rule for everything has rows of its own.
    let is_judged = rule.kind == Kind::Block || (rule.kind == Kind::All && !setting.hardened());
    if !is_judged || setting.privileged || !has(setting, |major, minor| rule.matches_block(major, minor))? {
        return Ok(Vec::new());
    }
    if !setting.hardened() {
        return Ok(vec![(RULE, MESSAGE.to_owned())]);
    }
    let help = "give it a disk of its own, or a folder";
    setting.weigh(Refusal::new(Code::UnsafeSpec, RULE, MESSAGE, help))
}

/// Judges what the spec mounts of a disk; `hardened` lets no file system be mounted so.
pub(crate) fn mounted(setting: &Setting<'_>, source: &str) -> Verdict {
    if !source.contains('/') {
        return Ok(Vec::new());
    }
    let path = paths::from_bundle(setting.case.bundle, source);
    let Object::Block { major, minor } = setting.machine.system.look(&path) else { return Ok(Vec::new()) };
    let is_one = has(setting, |a, b| (a, b) == (major, minor))?;
    Ok(if is_one { vec![(RULE, MESSAGE.to_owned())] } else { Vec::new() })
}

fn has(setting: &Setting<'_>, is: impl Fn(u32, u32) -> bool) -> Result<bool, Refusal> {
    let disks = setting.machine.system.disks().map_err(|why| Refusal::internal("numbers-unreadable", &why))?;
    Ok(disks.iter().any(|&(major, minor)| is(major, minor)))
}
