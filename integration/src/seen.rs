//! What `quilt-probe` reported from inside a container, read for what tests ask of it: which GPUs are open there.
//!
//! Knows the fixture's device numbers; decides nothing about what a container should have.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::error::{Context, Error, Result};

/// A command that reports all there is to know about GPUs: every number that could be one, both libraries.
pub const PROBE_ALL: [&str; 7] =
    ["quilt-probe", "all", "195:0-255", "511:0-3", "236:0-16", "libcuda.so.1", "libnvidia-ml.so.1"];

/// How many numbers that command tries.
const NUMBERS: usize = 256 + 4 + 17;

/// Path and number of the nodes that every GPU container has beside its GPUs.
const CONTROL: [(&str, &str); 3] =
    [("/dev/nvidiactl", "195:255"), ("/dev/nvidia-uvm", "511:0"), ("/dev/nvidia-uvm-tools", "511:1")];

/// A report of `quilt-probe all`.
#[derive(Clone, Debug)]
pub struct Seen(Value);

impl Seen {
    /// Reads the last line that the probe wrote.
    ///
    /// # Errors
    /// There is none, or it is no JSON.
    pub fn of(output: &str) -> Result<Self> {
        let line = output.lines().last().unwrap_or_default();
        serde_json::from_str(line).map(Self).cannot(|| format!("read the probe's report {output:?}"))
    }

    /// The minors of the GPUs that this container has: those with a node in /dev. Checks that the container is one
    /// that has these GPUs and nothing else: GPU and control nodes open, every other number does not, though the
    /// prober made its own nodes.
    ///
    /// # Errors
    /// What is not so.
    pub fn gpus(&self) -> Result<BTreeSet<u64>> {
        let numbers = self.numbers();
        let made = numbers.values().filter(|(made, _)| made == "ok").count();
        if made != NUMBERS {
            return Err(Error::new(format!("{made} of {NUMBERS} nodes could be made")));
        }
        let open = self.open_numbers();
        let gpus = self.gpus_by_node()?;
        let expected: BTreeSet<String> = if gpus.is_empty() {
            BTreeSet::new()
        } else {
            let control = CONTROL.iter().map(|(_, number)| (*number).to_owned());
            gpus.iter().map(|minor| format!("195:{minor}")).chain(control).collect()
        };
        if open != expected {
            let first: Vec<_> = open.iter().take(8).collect();
            let many = open.len();
            return Err(Error::new(format!("with own nodes {many} numbers open, {first:?}…, not {expected:?}")));
        }
        Ok(gpus)
    }

    /// The numbers that open by the prober's own nodes. One whose node cannot be made does not.
    pub fn open_numbers(&self) -> BTreeSet<String> {
        let numbers = self.numbers().into_iter();
        numbers.filter(|(_, (made, open))| made == "ok" && open != "EPERM").map(|(number, _)| number).collect()
    }

    /// What [`Seen::gpus`] says, by the nodes in /dev alone: for containers that cannot make their own.
    ///
    /// # Errors
    /// A node that should not be there, is missing, or does not open.
    pub fn gpus_by_node(&self) -> Result<BTreeSet<u64>> {
        let nodes = self.nodes();
        if let Some((path, open)) = nodes.iter().find(|(_, open)| **open != "ENXIO") {
            return Err(Error::new(format!("opening {path} gave {open}")));
        }
        let minor = |path: &str| path.strip_prefix("/dev/nvidia")?.parse::<u64>().ok();
        let gpus: BTreeSet<u64> = nodes.keys().filter_map(|path| minor(path)).collect();
        let others: Vec<&str> = nodes.keys().filter(|path| minor(path).is_none()).map(String::as_str).collect();
        let mut control: Vec<&str> = CONTROL.iter().map(|(path, _)| *path).collect();
        control.sort_unstable();
        match (gpus.is_empty(), others) {
            (true, others) if others.is_empty() => Ok(gpus),
            (false, others) if others == control => Ok(gpus),
            (_, others) => Err(Error::new(format!("GPUs {gpus:?} with these other nodes: {others:?}"))),
        }
    }

    /// Nodes below /dev whose names begin with `nvidia`, and what opening each gave.
    pub fn nodes(&self) -> BTreeMap<String, String> {
        let lines = self.lines("devices");
        lines.iter().map(|line| (text(&line["path"]), text(&line["open"]))).collect()
    }

    /// Every number tried: what making a node of it gave, and what opening that gave.
    pub fn numbers(&self) -> BTreeMap<String, (String, String)> {
        let number = |line: &Value| format!("{}:{}", line["major"], line["minor"]);
        let lines = self.lines("numbers");
        lines.iter().map(|line| (number(line), (text(&line["mknod"]), text(&line["open"])))).collect()
    }

    /// Nodes that were found by their number, whatever they are called: path, number, and what opening gave.
    pub fn found(&self) -> Vec<(String, String, String)> {
        let number = |line: &Value| format!("{}:{}", line["major"], line["minor"]);
        let lines = self.lines("found");
        lines.iter().map(|line| (text(&line["path"]), number(line), text(&line["open"]))).collect()
    }

    /// Which file the loader took for this name.
    ///
    /// # Errors
    /// It took none: the loader's words.
    pub fn library(&self, name: &str) -> Result<String> {
        let lines = self.lines("libraries");
        let found = lines.iter().find(|line| line["name"] == name);
        match found.and_then(|line| line["path"].as_str()) {
            Some(path) => Ok(path.to_owned()),
            None => Err(Error::new(format!("{name}: {}", found.map_or(&Value::Null, |line| &line["error"])))),
        }
    }

    /// The mount at this place.
    pub fn mount(&self, at: &str) -> Option<&Value> {
        self.lines("mounts").iter().find(|mount| mount["at"] == at)
    }

    /// A variable of the container's environment.
    pub fn env(&self, key: &str) -> Option<&str> {
        self.0["env"][key].as_str()
    }

    fn lines(&self, key: &str) -> &[Value] {
        self.0[key].as_array().map(Vec::as_slice).unwrap_or_default()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A report in which exactly these numbers open.
    fn report(nodes: &[&str], open: &[&str]) -> Seen {
        let mut numbers = Vec::new();
        for (major, last) in [(195, 255), (511, 3), (236, 16)] {
            for minor in 0..=last {
                let answer = if open.contains(&&*format!("{major}:{minor}")) { "ENXIO" } else { "EPERM" };
                numbers.push(json!({"major": major, "minor": minor, "mknod": "ok", "open": answer}));
            }
        }
        let devices: Vec<Value> =
            nodes.iter().map(|node| json!({"path": format!("/dev/{node}"), "open": "ENXIO"})).collect();
        Seen(json!({"devices": devices, "numbers": numbers}))
    }

    #[test]
    fn only_a_whole_grant_counts() {
        let control = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];
        let open = ["195:255", "511:0", "511:1"];
        let with = |names: &[&str], gpu: &[&'static str]| report(names, &[&open[..], gpu].concat()).gpus();
        let nodes = |gpu: &[&'static str]| [&control[..], gpu].concat();

        assert_eq!(report(&[], &[]).gpus().unwrap(), BTreeSet::new());
        assert_eq!(with(&nodes(&["nvidia2"]), &["195:2"]).unwrap(), BTreeSet::from([2]));
        for (what, answer) in [
            ("a node that does not open", with(&nodes(&["nvidia2"]), &[])),
            ("a number without a node", with(&nodes(&["nvidia2"]), &["195:2", "195:3"])),
            ("a modeset node", with(&nodes(&["nvidia2", "nvidia-modeset"]), &["195:2", "195:254"])),
            ("no control nodes", report(&["nvidia2"], &["195:2"]).gpus()),
            ("control nodes alone", with(&control, &[])),
            ("no nodes and an open number", report(&[], &["195:0"]).gpus()),
        ] {
            assert!(answer.is_err(), "{what}: {answer:?}");
        }
    }
}
