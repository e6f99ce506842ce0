//! `linux.devices`: judged by type and number, whatever the path says.

use std::borrow::Cow;

use contract::json::{Node, pointer_token};
use contract::{Code, Refusal};

use crate::findings::{Findings, MOST_ITEMS};
use crate::paths;
use crate::rules::{MAX_MAJOR, MAX_MINOR, Wrong, known_fields, written};
use crate::setting::Setting;

const AT: &str = "/linux/devices";
const FIELDS: &[&str] = &["type", "path", "major", "minor", "fileMode", "uid", "gid"];

/// What came of the entries.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// GPU entries beside a list that allows everything, to be taken out.
    pub(crate) drop: Vec<usize>,
    /// How many GPU entries were refused.
    pub(crate) refused: usize,
}

/// What an entry makes. Block devices are another space of numbers, no GPU is among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Char(u32, u32),
    Block(u32, u32),
    Pipe,
}

/// Judges the entries.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) -> Outcome {
    let mut outcome = Outcome::default();
    let mut seen: Vec<(Cow<'_, str>, usize, What, bool)> = Vec::new();
    let list = out.list(setting.case.spec.path(&["linux", "devices"]), MOST_ITEMS, &AT);
    for (index, node) in list.iter().enumerate() {
        match read(node) {
            Err(wrong) => out.refuse(malformed(index, node, &wrong)),
            Ok((path, what)) => {
                // The numbers decide what is opened; where the node lies only what stays behind.
                if setting.hardened() && paths::below(&path, "/dev").is_none() {
                    let message = "the device node lies outside /dev, where it can stay behind in the image";
                    let refusal = Refusal::new(Code::UnsafeSpec, "device-path", message, "use a path below /dev");
                    out.add(setting.weigh(refusal), &format_args!("{AT}/{index}/path"), &path);
                }
                let is_gpu = number(setting, index, &path, what, &mut outcome, out);
                seen.push((path, index, what, is_gpu));
            }
        }
    }
    contract::order::sort_by(&mut seen, |a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    for pair in seen.windows(2) {
        // Of two others either may be there: the device list says what opens.
        if let [(path, _, first, is_gpu), (again, index, second, is_gpu_too)] = pair
            && path == again
            && first != second
            && (*is_gpu || *is_gpu_too)
        {
            let message =
                "two entries make a GPU and another device at the same path, and runtimes differ in which one is there";
            let refusal = Refusal::new(Code::UnsafeSpec, "device-path", message, "give each device a path of its own");
            out.refuse(refusal.at(format!("{AT}/{index}/path"), &**path));
        }
    }
    if !outcome.drop.is_empty() {
        let message = format!("{} GPU device entries were taken out: every device was asked for", outcome.drop.len());
        out.note("device-gpu", AT, message);
    }
    outcome
}

/// Whether the entry is a GPU's. An engine that is told to give every device writes them all down, with fewer capabilities too.
fn number(
    setting: &Setting<'_>,
    index: usize,
    path: &str,
    what: What,
    outcome: &mut Outcome,
    out: &mut Findings,
) -> bool {
    let What::Char(major, minor) = what else {
        return false;
    };
    let is_gpu = setting.machine.is_gpu(major, minor);
    match &is_gpu {
        Ok(false) => {}
        Ok(true) if setting.allows_all => outcome.drop.push(index),
        Ok(true) => {
            outcome.refused += 1;
            let message = format!("this device entry makes a GPU's node ({major}:{minor})");
            let refusal = Refusal::new(Code::TenantGpuDevice, "device-gpu", message, setting.way_out("the device"));
            out.refuse(refusal.at(format!("{AT}/{index}"), path));
        }
        Err(why) => out.blind(why),
    }
    is_gpu == Ok(true)
}

fn malformed(index: usize, node: &Node<'_>, (field, why): &Wrong) -> Refusal {
    let (rule, help) = match field.as_str() {
        "path" => ("device-path", "write an absolute path without .. parts"),
        field if !FIELDS.contains(&field) => ("json-unknown", "leave the field out"),
        _ => ("device-shape", "write type c, b, u or p, and whole numbers from 0 for major and minor"),
    };
    let message = format!("runtimes read this device entry differently: {why}");
    Refusal::new(Code::UnsafeSpec, rule, message, help)
        .at(format!("{AT}/{index}/{}", pointer_token(field)), written(node.get(field)))
}

/// The path in its plain form: Docker leaves slashes as users write them.
fn read<'n>(node: &'n Node<'_>) -> Result<(Cow<'n, str>, What), Wrong> {
    known_fields(node, FIELDS)?;
    let wrong = |field: &str, why| (field.to_owned(), why);
    let path = node.get("path").and_then(Node::as_str).filter(|path| path.starts_with('/') && !paths::climbs(path));
    let path = path.map(paths::clean).filter(|path| path != "/");
    let path = path.ok_or_else(|| wrong("path", "the path is not an absolute path without .. parts"))?;
    let number = |field: &'static str, most: u32| match node.get(field) {
        None => Ok(0),
        Some(value) => {
            let number = value.as_i64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= most);
            number.ok_or_else(|| wrong(field, "the number is not one that devices have"))
        }
    };
    let numbers = || Ok::<_, Wrong>((number("major", MAX_MAJOR)?, number("minor", MAX_MINOR)?));
    let what = match node.get("type").and_then(Node::as_str) {
        Some("c" | "u") => numbers().map(|(major, minor)| What::Char(major, minor))?,
        Some("b") => numbers().map(|(major, minor)| What::Block(major, minor))?,
        Some("p") => What::Pipe,
        _ => return Err(wrong("type", "the type is not c, b, u or p")),
    };
    Ok((path, what))
}
