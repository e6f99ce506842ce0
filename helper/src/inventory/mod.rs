//! What this node has: read from any host root, put together without I/O, stored for everything else to read.
//!
//! It loads no library of the driver into this process; programs are started by `probe` (the low-level runtime) and `sources`
//! (the driver's own) alone.

mod busy;
mod capacity;
mod changes;
mod files;
mod gpus;
mod links;
mod make;
mod merge;
mod mig;
mod nodes;
mod places;
mod platform;
mod probe;
mod read;
mod root;
mod search;
mod sockets;
mod sources;
mod store;
pub(crate) mod told;
mod vfio;

use contract::config::Host;
use contract::gpu::Gpu;
use contract::inventory::{Facts, Finding, Inventory, SCHEMA};
use node::driver::Information;
use node::mig::Capability;

pub use changes::{changes, in_words};
pub(crate) use links::make as make_links;
pub(crate) use make::make as make_nodes;
pub(crate) use sources::usage;
pub use store::{Refreshed, current, look, refresh, seen};
pub(crate) use store::{look_live, renewed};

use gpus::Function;
use nodes::DevRoot;
use search::Driver;
use told::{Answer, Live};

/// Everything that was read of a node; from here on nothing is.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) facts: Facts,
    pub(crate) functions: Vec<Function>,
    pub(crate) held: Vec<(String, Information)>,
    /// Minors of the capability nodes of MIG instances.
    pub(crate) capabilities: Vec<Capability>,
    /// The driver's files, of any version and installation.
    pub(crate) driver: Driver,
    /// What kind of machine this is, when GPUs of it cannot be granted.
    pub(crate) platform: Option<Finding>,
    /// What reading itself found wrong.
    pub(crate) findings: Vec<Finding>,
    /// What the driver's own interfaces answered.
    pub(crate) answers: Vec<Answer>,
    /// What was known before.
    pub(crate) earlier: Option<Inventory>,
}

/// Looks at the node. The driver itself is not asked.
///
/// # Errors
/// What could not be read, and why. A missing driver, node or file is a finding, no error.
pub fn discover(host: &Host) -> Result<Inventory, String> {
    Ok(with_nodes(host, read::seen(host)?))
}

/// What each GPU does at the moment of a look, by its PCI address.
pub(crate) type Lives = Vec<(String, Live)>;

/// Looks at the node and asks the driver about it, `live`: about this moment too. `earlier` is what was known.
///
/// # Errors
/// As [`discover`]. A driver that does not answer is a finding too.
pub(crate) fn asked(host: &Host, earlier: Option<Inventory>, live: bool) -> Result<(Inventory, Lives), String> {
    let seen = read::seen(host)?;
    if let Some(why) = blind(host, &seen, earlier.as_ref()) {
        return Err(why);
    }
    let first = with_nodes(host, seen.clone());
    let answers = sources::ask(host, &first, live);
    let is_dxg = first.gpus.iter().any(Gpu::is_dxg);
    let (answers, several) = if is_dxg { platform::as_one(answers) } else { (answers, None) };
    let findings = seen.findings.iter().cloned().chain(several).collect();
    let gpus = merge::told(&answers).into_iter().flat_map(|told| &told.gpus);
    let lives = gpus.map(|gpu| (gpu.pci.clone(), gpu.live)).collect();
    Ok((with_nodes(host, Seen { answers, earlier, findings, ..seen }), lives))
}

/// Why nothing was seen although there is something: an empty inventory must not take the place of a good one.
fn blind(host: &Host, seen: &Seen, earlier: Option<&Inventory>) -> Option<String> {
    let held = seen.facts.driver_gpus.len();
    let known = earlier.map_or(0, |earlier| earlier.gpus.len());
    let bus = host.path("sys/bus/pci/devices");
    let there = held.max(known) == 0 || !seen.functions.is_empty() || std::path::Path::new(&bus).exists();
    let words = format!("{bus} is not there, and this node has GPUs ({known} known, {held} held by the driver)");
    (!there).then(|| format!("{words}; is /sys mounted, and [host] root right? What is known stays"))
}

fn with_nodes(host: &Host, seen: Seen) -> Inventory {
    let dev_root = host.dev_root();
    let look = |name: &str| read::at_name(&dev_root, name);
    let mut inventory = assemble(seen, &DevRoot { path: &dev_root, look: &look });
    let missing = links::missing(host, &inventory);
    inventory.findings.extend(missing);
    inventory
}

/// The inventory that these facts make.
pub(crate) fn assemble(seen: Seen, dev: &DevRoot<'_>) -> Inventory {
    let Seen { facts, functions, held, capabilities, driver, platform, mut findings, answers, earlier } = seen;
    let (gpus, mut of_gpus) = gpus::gpus(&functions, &merge::completed(&held, &answers), &facts, dev);
    let mut inventory = Inventory { schema: SCHEMA, facts, gpus, ..Inventory::default() };
    let of_sources = merge::merge(&mut inventory, &held, &answers, earlier.as_ref());
    let Inventory { facts, gpus, .. } = &mut inventory;
    let instances = mig::Instances { facts, capabilities: &capabilities, dev };
    for gpu in gpus {
        let of_gpu = merge::told(&answers).into_iter().find_map(|told| merge::of(told, &gpu.pci));
        of_gpus.extend(instances.cut(gpu, of_gpu));
    }
    if let Some(platform) = platform {
        let stops = platform.stops;
        inventory.findings.push(platform);
        if stops {
            return inventory;
        }
    }
    // Without a GPU there is nothing to find missing; without the driver nothing of it is given out.
    let version = inventory.facts.driver_version.as_deref();
    let is_dxg = inventory.gpus.iter().any(Gpu::is_dxg);
    match (inventory.gpus.is_empty(), version) {
        (true, _) => return inventory,
        (false, None) if !is_dxg => findings = driver_missing(&inventory).into_iter().collect(),
        (false, _) => {
            // One node does for WSL's GPU what several do for one on the bus.
            let (mut control, of_control) =
                if is_dxg { Default::default() } else { nodes::control(&inventory.facts, dev) };
            control.extend(mig::Instances { facts: &inventory.facts, capabilities: &capabilities, dev }.management());
            let version = version.filter(|_| !is_dxg);
            let (libraries, tree, of_libraries) = files::libraries(driver.libraries, version);
            let (files, of_files) = files::files(driver.files, &libraries, tree, version);
            let of_driver = of_gpus.into_iter().chain(of_sources).chain(of_control);
            findings.extend(of_driver.chain(of_libraries).chain(of_files));
            (inventory.control, inventory.libraries, inventory.files) = (control, libraries, files);
            if is_dxg {
                platform::settle(&mut inventory.gpus, &findings);
            }
            let nodes = inventory.gpus.iter().flat_map(|gpu| &gpu.nodes).chain(&inventory.control);
            findings.extend(nodes::odd_modes(nodes));
        }
    }
    inventory.findings.extend(findings);
    inventory
}

/// GPUs that virtual machines hold need no driver here.
fn driver_missing(inventory: &Inventory) -> Option<Finding> {
    let waiting: Vec<&Gpu> =
        inventory.gpus.iter().filter(|gpu| !gpu.driver.as_deref().is_some_and(vfio::is_driver)).collect();
    let mut others: Vec<&str> = waiting.iter().filter_map(|gpu| gpu.driver.as_deref()).collect();
    others.sort_unstable();
    others.dedup();
    let held = if others.is_empty() { String::new() } else { format!("; {} holds some", others.join(", ")) };
    (!waiting.is_empty()).then(|| Finding {
        code: "driver-missing".into(),
        stops: true,
        message: format!(
            "{} NVIDIA GPU(s) on the bus and no nvidia kernel module loaded{held}; run `modprobe nvidia`, or install the driver",
            waiting.len()
        ),
    })
}

#[cfg(test)]
mod tests;
