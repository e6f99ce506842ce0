//! `quilt-gpu inventory`: what the node has now; `inventory refresh`: the same, stored for the runtime.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use contract::gpu::{Gpu, Partition, Unavailable};
use contract::inventory::{Filter, Finding, Inventory, LowLevel};
use ledger::audit::Kind;
use ledger::{Ledger, slot};
use serde::Serialize;
use serde_json::json;
use shim::Setup;

use crate::cli::{Context, Format, not_offered};
use crate::exit::{Exit, Failure};
use crate::formats::lines::{self, Group, Instance};
use crate::formats::prometheus;
use crate::formats::view::{self, View};
use crate::input;
use crate::inventory;
use crate::record;
use crate::table;

/// Longer than any driver takes, and shorter than anybody waits for a node's boot.
const MOST_PATIENCE: u64 = 600;
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// PCI's base class of bridges: they are in a group, and are nobody's to give.
const BRIDGE: u32 = 0x06;
const NO_GPU: &str = "this node has no NVIDIA GPU\n";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Looks again, stores what is found, and prints what changed
    Refresh {
        /// Makes missing /dev/char links too, without which systemd drops device rules at every daemon-reload
        #[arg(long)]
        char_links: bool,
        /// Makes device nodes too that the loaded driver has and /dev lacks, and their links in /dev/char
        #[arg(long)]
        make_nodes: bool,
        /// Waits so long for the driver when there are GPUs (30s, 2m); exits with 3 when it is not ready then
        #[arg(long, value_name = "TIME", value_parser = patience)]
        wait: Option<Duration>,
    },
    /// Compares a vfio-inventory or mig-inventory with this node: what it lists and the node has not (-), and what the
    /// node has beyond it (+)
    Diff {
        /// The list; - is stdin. Without --format, a list whose lines begin with a number is a vfio-inventory
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
    },
}

/// What a refresh does besides.
struct Refresh {
    char_links: bool,
    make_nodes: bool,
    /// By the command's own words, not by policy alone.
    told: bool,
    wait: Option<Duration>,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    match &args.action {
        Some(Action::Refresh { char_links, make_nodes, wait }) => {
            let json = context.json()?;
            let (char_links, told) = (*char_links, *char_links || *make_nodes);
            let make_nodes = *make_nodes || context.setup.config.policy.make_nodes;
            refresh(&mut context, json, &Refresh { char_links, make_nodes, told, wait: *wait })
        }
        Some(Action::Diff { file }) => diff(file, &mut context),
        None => {
            let live = matches!(context.format, Some(Format::Json | Format::Prometheus));
            let looked = if live {
                inventory::look_live(&context.setup)
            } else {
                inventory::look(&context.setup).map(|it| (it, Vec::new()))
            };
            let (inventory, lives) = looked.map_err(Failure::Internal)?;
            print(&inventory, &lives, &mut context)?;
            Ok(Exit::Done)
        }
    }
}

/// Everything that is known, and one row a GPU for who keeps rows.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    inventory: &'a Inventory,
    gpu_inventory: Vec<View<'a>>,
}

fn print(inventory: &Inventory, lives: &inventory::Lives, context: &mut Context<'_>) -> Result<(), Failure> {
    let leased = leased(inventory, &context.setup);
    let mut gpu_inventory = view::views(inventory, &|id| leased.iter().any(|leased| leased == id));
    for view in &mut gpu_inventory {
        let live = lives.iter().find(|(pci, _)| pci == view.pci);
        view.metrics = live.map(|(_, live)| *live).unwrap_or_default();
    }
    match context.format {
        None | Some(Format::Table) => Ok(write!(context.out, "{}", text(inventory, &leased))?),
        Some(Format::Json) => context.document(&Document { inventory, gpu_inventory }),
        Some(Format::Prometheus) => Ok(write!(context.out, "{}", prometheus::text(inventory, &gpu_inventory))?),
        Some(Format::VfioInventory) => listed(&groups(&gpu_inventory, &context.setup)?, context.out),
        Some(Format::MigInventory) => listed(&lines::instances(&gpu_inventory), context.out),
        Some(other) => Err(not_offered(other, "table, json, prometheus, vfio-inventory and mig-inventory")),
    }
}

fn listed(lines: &[impl std::fmt::Display], out: &mut dyn Write) -> Result<(), Failure> {
    Ok(lines.iter().try_for_each(|line| writeln!(out, "{line}"))?)
}

/// What leases take.
fn leased(inventory: &Inventory, setup: &Setup) -> Vec<String> {
    Ledger::open_existing(setup.state_dir()).map(|ledger| ledger.taken(inventory)).unwrap_or_default()
}

fn groups(views: &[View<'_>], setup: &Setup) -> Result<Vec<Group>, Failure> {
    let devices = node::pci::devices(&setup.config.host).map_err(Failure::internal)?;
    let in_group =
        |device: &&node::pci::Device, group| device.iommu_group == Some(group) && device.class >> 16 != BRIDGE;
    Ok(lines::groups(views, &|pci| {
        let group = devices.iter().find(|device| device.address == pci).and_then(|device| device.iommu_group);
        let members = devices.iter().filter(|device| group.is_some_and(|group| in_group(device, group)));
        members.map(|device| device.address.clone()).collect()
    }))
}

/// Compares a list with the node; by what it names, whatever more is known of it here or there.
fn diff(file: &Path, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let text = input::text(file)?;
    let inventory = inventory::look(&context.setup).map_err(Failure::Internal)?;
    let views = view::views(&inventory, &|_| false);
    let number = lines::begins_with_a_number(&text);
    let wrong = |why| Failure::Usage(format!("{}: {why}", file.display()));
    let lines = match (context.format, number) {
        (Some(Format::VfioInventory), _) | (None, true) => {
            let bare = |group: Group| Group { known: Vec::new(), ..group };
            let there = groups(&views, &context.setup)?.into_iter().map(bare).collect();
            differing(lines::read_groups(&text).map_err(wrong)?.into_iter().map(bare).collect(), there)
        }
        (Some(Format::MigInventory), _) | (None, false) => {
            let bare = |instance: Instance| Instance { parent: None, ..instance };
            let there = lines::instances(&views).into_iter().map(bare).collect();
            differing(lines::read_instances(&text).map_err(wrong)?.into_iter().map(bare).collect(), there)
        }
        (Some(other), _) => return Err(not_offered(other, "vfio-inventory and mig-inventory")),
    };
    listed(&lines, context.out)?;
    Ok(if lines.is_empty() { Exit::Done } else { Exit::Refused })
}

fn differing<T: PartialEq + std::fmt::Display>(listed: Vec<T>, there: Vec<T>) -> Vec<String> {
    let gone =
        listed.iter().filter(|one| !there.contains(one)).map(|one| format!("- {}", table::one_line(&one.to_string())));
    let new = there.iter().filter(|one| !listed.contains(one)).map(|one| format!("+ {one}"));
    gone.chain(new).collect()
}

/// A time as people write it: `30s`, `2m`.
fn patience(text: &str) -> Result<Duration, String> {
    let time = contract::request::seconds(text);
    let time = time.filter(|seconds| *seconds <= MOST_PATIENCE).map(Duration::from_secs);
    time.ok_or_else(|| format!("write a time as in 30s or 2m, at most {MOST_PATIENCE} seconds"))
}

/// Whether nothing is left to wait for: every GPU's driver is there, or there is no GPU, or none of this kind ever will be.
fn is_settled(inventory: &Inventory) -> bool {
    let waits = |gpu: &Gpu| gpu.unavailable.as_ref().is_some_and(|why| why.state.awaits_driver());
    inventory.gpus.is_empty()
        || !inventory.findings.iter().any(|finding| finding.stops) && !inventory.gpus.iter().any(waits)
}

/// What was made before a refresh.
#[derive(Default)]
struct Prepared {
    /// Nodes and links.
    made: Vec<String>,
    /// The last reason why one could not be made.
    failed: Option<String>,
    /// Whether there is nothing left to wait for.
    settled: bool,
}

impl Prepared {
    /// What cannot be made now may be later, and keeps nobody from looking at what is there.
    fn take(&mut self, made: Result<Vec<String>, String>) {
        self.failed = made.map(|made| self.made.extend(made)).err();
    }
}

/// Makes the nodes and links that are asked for, until the node is settled or patience ends.
fn prepared(setup: &Setup, asked: &Refresh) -> Result<Prepared, String> {
    let host = &setup.config.host;
    let until = Instant::now() + asked.wait.unwrap_or_default();
    let mut prepared = Prepared::default();
    loop {
        if asked.make_nodes {
            prepared.take(inventory::make_nodes(host));
        }
        let now = inventory::discover(host);
        let settled = now.as_ref().is_ok_and(is_settled);
        if !settled && Instant::now() < until {
            sleep(BETWEEN_LOOKS);
            continue;
        }
        if prepared.failed.is_none() && (asked.char_links || asked.make_nodes) {
            prepared.take(inventory::make_links(host, &now?));
        }
        return Ok(Prepared { settled, ..prepared });
    }
}

fn refresh(context: &mut Context<'_>, json: bool, asked: &Refresh) -> Result<Exit, Failure> {
    let nothing = !asked.char_links && !asked.make_nodes && asked.wait.is_none();
    let Prepared { made: links, failed, settled } = match nothing {
        true => Prepared { settled: true, ..Prepared::default() },
        false => prepared(&context.setup, asked).map_err(Failure::Internal)?,
    };
    let not_made = failed.clone().map(|message| Finding { code: "nodes-not-made".into(), stops: false, message });
    let refreshed = inventory::refresh(&context.setup, not_made).map_err(Failure::Internal)?;
    // There are GPUs, and no driver: the same call may find it later.
    let driver = !refreshed.inventory.findings.iter().any(|finding| finding.code == "driver-missing");
    let exit = if driver && (settled || asked.wait.is_none()) { Exit::Done } else { Exit::NotReady };
    // What policy asks for each time is a finding; who asked now is told.
    if let Some(why) = failed.filter(|_| asked.told) {
        return Err(Failure::Internal(why));
    }
    if !refreshed.changes.is_empty() || !links.is_empty() {
        let fields = [("changes", json!(refreshed.changes)), ("links", json!(links))];
        record::append(&context.setup, Kind::Refresh, fields)?;
    }
    if json {
        let document = json!({ "changes": refreshed.changes, "links": links, "inventory": refreshed.inventory });
        context.document(&document)?;
        return Ok(exit);
    }
    for link in &links {
        writeln!(context.out, "made {}", table::one_line(link))?;
    }
    for line in &refreshed.changes {
        writeln!(context.out, "{}", table::one_line(line))?;
    }
    if refreshed.changes.is_empty() {
        write!(context.out, "nothing changed: {}", standing(&refreshed.inventory))?;
    }
    Ok(exit)
}

/// What there is, when nothing new is to be told: the first look at a node without GPUs changes nothing either.
fn standing(inventory: &Inventory) -> String {
    let gpus = match inventory.gpus.len() {
        0 => NO_GPU.to_owned(),
        number => format!("{}\n", table::counted(number as u64, "GPU", "GPUs")),
    };
    gpus + &findings(inventory)
}

/// The inventory for people.
pub(crate) fn text(inventory: &Inventory, leased: &[String]) -> String {
    let rows: Vec<_> = inventory.gpus.iter().flat_map(|gpu| rows(inventory, gpu, leased)).collect();
    let mut out = match rows.as_slice() {
        [] => NO_GPU.to_owned(),
        rows => table::render(["INDEX", "NAME", "PCI", "UUID", "MODEL", "NUMA", "LEASE", "STATE"], rows),
    };
    if let Some(version) = &inventory.facts.driver_version {
        let parts = [
            (inventory.control.len(), "control node", "control nodes"),
            (inventory.libraries.len(), "library", "libraries"),
            (inventory.files.len(), "other file", "other files"),
        ];
        let parts = parts.map(|(number, one, many)| table::counted(number as u64, one, many));
        out.push_str(&format!("\ndriver {version}: {}\n", parts.join(", ")));
    }
    if let Some(low_level) = inventory.low_level.as_ref().filter(|it| it.filter != Filter::NotEnforced) {
        out.push_str(&format!("\n{}\n", of_low_level(low_level)));
    }
    out + &findings(inventory)
}

fn of_low_level(low_level: &LowLevel) -> String {
    table::one_line(&format!("low-level runtime {}: {}", low_level.path, inventory::in_words(low_level)))
}

fn findings(inventory: &Inventory) -> String {
    let mut out = String::new();
    for finding in &inventory.findings {
        let weight = if finding.stops { "stops GPU containers" } else { "note" };
        out.push_str(&format!("\n{} ({weight}): {}\n", finding.code, table::one_line(&finding.message)));
    }
    if let Some(low_level) = inventory.low_level.as_ref().filter(|it| it.filter == Filter::NotEnforced) {
        out.push_str(&format!("\nno-device-filter (stops GPU containers): {}\n", of_low_level(low_level)));
    }
    out
}

/// One GPU, and its MIG instances below it. They are usable only where nothing stops GPU containers.
fn rows(inventory: &Inventory, gpu: &Gpu, leased: &[String]) -> Vec<[String; 8]> {
    let filter = inventory.low_level.as_ref().is_some_and(|it| it.filter == Filter::NotEnforced);
    let stop = inventory.findings.iter().find(|finding| finding.stops).map(|finding| finding.code.as_str());
    let stop = stop.or(filter.then_some("no-device-filter"));
    let state = |why: Option<&Unavailable>, usable: &str| match (why, stop) {
        (Some(it), _) => format!("unavailable: {}", it.why),
        (None, Some(code)) => format!("not granted: {code}"),
        (None, None) => usable.to_owned(),
    };
    let lease = |slot: &String, can: bool| match (leased.contains(slot), can) {
        (true, _) => "leased".to_owned(),
        (false, true) => "free".to_owned(),
        (false, false) => String::new(),
    };
    let cut = gpu.partitions.len() as u64;
    let whole = if cut == 0 { "usable".to_owned() } else { table::counted(cut, "MIG instance", "MIG instances") };
    let own = [
        gpu.index.map(|index| index.to_string()).unwrap_or_default(),
        gpu.minor.map(|minor| format!("nvidia{minor}")).unwrap_or_default(),
        gpu.pci.clone(),
        gpu.uuid.clone().unwrap_or_default(),
        gpu.model.clone().unwrap_or_default(),
        gpu.numa.map(|numa| numa.to_string()).unwrap_or_default(),
        lease(&gpu.pci, gpu.usable()),
        state(gpu.unavailable.as_ref(), &whole),
    ];
    let part = |part: &Partition| {
        let why = gpu.without(part);
        [
            gpu.short_name(part),
            String::new(),
            gpu.pci.clone(),
            part.uuid.clone().unwrap_or_default(),
            format!("MIG {}", part.profile),
            String::new(),
            lease(&slot::of_part(gpu, part), why.is_none()),
            state(why, "usable"),
        ]
    };
    std::iter::once(own).chain(gpu.partitions.iter().map(part)).collect()
}
