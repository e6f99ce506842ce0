//! Devices of our own CDI file that the engine put into the spec before we saw it: they are taken out, and asked for as
//! everything else is. Taking out closes; what is opened again is a contract's.
//!
//! They are known by the variable that our file sets, by all nodes and files that a contract for the same GPUs would give
//! now, and by nothing less: what is left over is judged as a tenant's own.

use std::cell::OnceCell;

use cdi::{Op, Without};
use contract::inventory::{DeviceNode, Inventory, Role};
use contract::json::{self, JsonError, Node};
use contract::request::{Asked, Source, Words};
use contract::{Code, Contract, Granted, Refusal};
use ledger::Recipient;

use crate::grant;
use crate::setup::Setup;
use crate::words;

/// What our file sets, with the driver capabilities that it was made for.
pub(crate) const MADE_FOR: &str = "QUILT_GPU_CDI=";

/// How a dry run sees the node.
type View<'b> = &'b dyn Fn() -> Result<Inventory, Refusal>;

/// A spec, and what is judged of it: all but what an engine put in for us.
pub(crate) struct Judged<'b> {
    given: &'b [u8],
    /// None: by the stored inventory, which is made anew where it is stale.
    node: Option<View<'b>>,
    taken: OnceCell<Taken>,
}

/// What was put in for us.
#[derive(Default)]
struct Taken {
    /// The request that it is, or why it is none; nothing where nothing was put in.
    found: Option<Result<Words, Refusal>>,
    /// The spec without it.
    rest: Option<Vec<u8>>,
    removed: Vec<Op>,
    without: Without,
}

impl<'b> Judged<'b> {
    pub(crate) fn new(given: &'b [u8]) -> Self {
        Self { given, node: None, taken: OnceCell::new() }
    }

    /// One that changes nothing on the node, whatever is looked up.
    pub(crate) fn dry(given: &'b [u8], node: View<'b>) -> Self {
        Self { given, node: Some(node), taken: OnceCell::new() }
    }

    /// The spec as it is judged.
    ///
    /// # Errors
    /// As the strict reader's.
    pub(crate) fn spec(&self, setup: &Setup) -> Result<Node<'_>, JsonError> {
        let spec = json::parse_oci(self.given)?;
        // Nearly all containers end here: nothing but their variables was looked at.
        let Some(mark) = mark(&spec) else { return Ok(spec) };
        match &self.taken.get_or_init(|| self.taken_out(&spec, mark, setup)).rest {
            Some(rest) => json::parse_oci(rest),
            None => Ok(spec),
        }
    }

    /// Its bytes, once it was read.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.taken.get().and_then(|taken| taken.rest.as_deref()).unwrap_or(self.given)
    }

    fn taken_out(&self, spec: &Node<'_>, mark: (usize, &str), setup: &Setup) -> Taken {
        match found(spec, mark, setup, self.node) {
            Ok(None) => Taken::default(),
            Err(refusal) => Taken { found: Some(Err(refusal)), ..Taken::default() },
            Ok(Some((words, without))) => match cdi::without(self.given, spec, &without) {
                Ok((rest, removed)) => Taken { found: Some(Ok(words)), rest: Some(rest), removed, without },
                // A spec of another shape: the guard says where.
                Err(_) => Taken::default(),
            },
        }
    }

    /// The request that was found in what an engine put in, or why it is none.
    pub(crate) fn found(&self) -> Option<&Result<Words, Refusal>> {
        self.taken.get()?.found.as_ref()
    }

    /// What was taken out.
    pub(crate) fn removed(&self) -> &[Op] {
        self.taken.get().map_or(&[], |taken| &taken.removed)
    }

    /// A refusal as the engine's own spec has it: places count what was taken out, too.
    pub(crate) fn show(&self, spec: &Node<'_>, refusal: &mut Refusal) {
        words::show_entry(spec, refusal);
        let Some(Taken { without: Without { devices, mounts, rules }, .. }) = self.taken.get() else { return };
        for (list, gone) in [("/mounts/", mounts), ("/linux/devices/", devices), ("/linux/resources/devices/", rules)] {
            let Some(rest) = refusal.at.strip_prefix(list) else { continue };
            let (index, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if let Ok(index) = index.parse::<usize>() {
                let before = gone.iter().fold(index, |index, gone| index + usize::from(*gone <= index));
                refusal.at = format!("{list}{before}{rest}");
                break;
            }
        }
    }
}

/// Where the variable of our file stands, and what it says.
fn mark<'s>(spec: &'s Node<'_>) -> Option<(usize, &'s str)> {
    let entries = spec.path(&["process", "env"]).map(Node::items).unwrap_or_default();
    let mut entries = entries.iter().enumerate().rev();
    entries.find_map(|(index, entry)| Some((index, entry.as_str()?.strip_prefix(MADE_FOR)?)))
}

/// The request in what an engine put in, and what that is.
fn found(
    spec: &Node<'_>,
    mark: (usize, &str),
    setup: &Setup,
    node: Option<View<'_>>,
) -> Result<Option<(Words, Without)>, Refusal> {
    let devices = spec.path(&["linux", "devices"]).map(Node::items).unwrap_or_default();
    // An image may have the variable too: no container without GPUs waits for a driver.
    let is_control =
        |device: &Node<'_>| device.get("path").and_then(Node::as_str).is_some_and(|path| path.ends_with("/nvidiactl"));
    if !devices.iter().any(is_control) {
        return Ok(None);
    }
    let inventory = match node {
        Some(node) => node(),
        None => grant::fresh(setup, || grant::read_inventory(setup)),
    }?;
    let granted = granted(&inventory, devices);
    if granted.is_empty() {
        return Ok(None);
    }
    let mut words = Words::default();
    let mut names = String::new();
    for one in &granted {
        names.push_str(&one.name());
        names.push(',');
    }
    names.pop();
    words.set("ids", "/linux/devices".to_owned(), names);
    words.set("capabilities", format!("/process/env/{}", mark.0), mark.1.to_owned());
    let Asked::Gpus(request) = words.ask(Source::Cdi)? else { return Ok(None) };
    let contract = ledger::draft(&inventory, &granted, &request, &setup.config.policy, "", Recipient::default(), 0)?;
    Ok(Some((words, parts(spec, &contract)?)))
}

/// The GPUs and parts whose nodes are all there.
fn granted(inventory: &Inventory, devices: &[Node<'_>]) -> Vec<Granted> {
    let there = |node: &DeviceNode| devices.iter().any(|device| is_node(device, node));
    let mut granted = Vec::new();
    for gpu in &inventory.gpus {
        if !gpu.nodes.iter().any(|node| node.role == Role::Compute && there(node)) {
            continue;
        }
        if gpu.partitions.is_empty() {
            granted.push(Granted::of(gpu));
        }
        for part in &gpu.partitions {
            if part.nodes.read().is_ok_and(|nodes| nodes.iter().all(there)) {
                granted.push(Granted::of_part(gpu, part));
            }
        }
    }
    granted
}

/// Where everything that a contract gives stands in the spec.
fn parts(spec: &Node<'_>, contract: &Contract) -> Result<Without, Refusal> {
    let list = |path: &[&str]| spec.path(path).map(Node::items).unwrap_or_default();
    let (devices, mounts) = (list(&["linux", "devices"]), list(&["mounts"]));
    let mut without = Without::default();
    let mut missing = None;
    for node in &contract.nodes {
        match devices.iter().position(|device| is_node(device, node)) {
            Some(index) => without.devices.push(index),
            None => missing = Some(&node.path),
        }
    }
    let libraries = contract.libraries.iter().map(|library| &library.host_path);
    for file in libraries.chain(contract.files.iter().map(|file| &file.host_path)) {
        let mut there = false;
        for (index, mount) in mounts.iter().enumerate() {
            if mount.get("source").and_then(Node::as_str) == Some(file) {
                there = true;
                if !without.mounts.contains(&index) {
                    without.mounts.push(index);
                }
            }
        }
        if !there {
            missing = Some(file);
        }
    }
    for (index, rule) in list(&["linux", "resources", "devices"]).iter().enumerate() {
        let allows = rule.get("allow").and_then(Node::as_bool) == Some(true);
        let of_char = rule.get("type").and_then(Node::as_str) == Some("c");
        if allows && of_char && contract.nodes.iter().any(|node| has_numbers(rule, node)) {
            without.rules.push(index);
        }
    }
    contract::order::sort(&mut without.devices);
    contract::order::sort(&mut without.mounts);
    let Some(what) = missing else { return Ok(without) };
    let message = "devices of a CDI file of ours were put in that is not this node's any more: this is missing";
    let help = "have the operator run `quilt-gpu cdi generate --output` again, and start the container anew";
    Err(Refusal::new(Code::ForeignGpuInjection, "cdi-stale", message, help).at("/linux/devices", what.clone()))
}

fn is_node(device: &Node<'_>, node: &DeviceNode) -> bool {
    device.get("path").and_then(Node::as_str) == Some(node.path.as_str()) && has_numbers(device, node)
}

fn has_numbers(item: &Node<'_>, node: &DeviceNode) -> bool {
    let is = |key, number: u32| item.get(key).and_then(Node::as_i64) == Some(i64::from(number));
    is("major", node.major) && is("minor", node.minor)
}
