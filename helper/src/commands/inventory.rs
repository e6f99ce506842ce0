//! `quilt-gpu inventory`: what the node has now; `inventory refresh`: the same, stored for the runtime.

use contract::gpu::Gpu;
use contract::inventory::{Filter, Inventory, LowLevel};
use ledger::audit::Kind;
use serde_json::json;

use crate::cli::Context;
use crate::exit::{Exit, Failure};
use crate::inventory;
use crate::record;
use crate::table;

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
    },
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    match args.action {
        Some(Action::Refresh { char_links }) => refresh(&mut context, json, char_links)?,
        None => {
            let inventory = inventory::look(&context.setup).map_err(Failure::Internal)?;
            if json { context.document(&inventory)? } else { write!(context.out, "{}", text(&inventory))? }
        }
    }
    Ok(Exit::Done)
}

fn refresh(context: &mut Context<'_>, json: bool, char_links: bool) -> Result<(), Failure> {
    let links = if char_links {
        let now = inventory::discover(&context.setup.config.host).map_err(Failure::Internal)?;
        inventory::make_links(&context.setup.config.host, &now).map_err(Failure::Internal)?
    } else {
        Vec::new()
    };
    let refreshed = inventory::refresh(&context.setup).map_err(Failure::Internal)?;
    if !refreshed.changes.is_empty() || !links.is_empty() {
        let fields = [("changes", json!(refreshed.changes)), ("links", json!(links))];
        record::append(&context.setup, Kind::Refresh, fields)?;
    }
    if json {
        return context
            .document(&json!({ "changes": refreshed.changes, "links": links, "inventory": refreshed.inventory }));
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
    Ok(())
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
pub(crate) fn text(inventory: &Inventory) -> String {
    let rows: Vec<_> = inventory.gpus.iter().map(row).collect();
    let mut out = match rows.as_slice() {
        [] => NO_GPU.to_owned(),
        rows => table::render(["INDEX", "NAME", "PCI", "UUID", "MODEL", "NUMA", "STATE"], rows),
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

fn row(gpu: &Gpu) -> [String; 7] {
    [
        gpu.index.map(|index| index.to_string()).unwrap_or_default(),
        gpu.minor.map(|minor| format!("nvidia{minor}")).unwrap_or_default(),
        gpu.pci.clone(),
        gpu.uuid.clone().unwrap_or_default(),
        gpu.model.clone().unwrap_or_default(),
        gpu.numa.map(|numa| numa.to_string()).unwrap_or_default(),
        gpu.unavailable.as_ref().map_or_else(|| "usable".to_owned(), |it| format!("unavailable: {}", it.why)),
    ]
}
