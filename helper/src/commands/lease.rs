//! `quilt-gpu lease`: who has which GPU, and leases for what is no container.

use std::collections::BTreeSet;
use std::io::Write;

use contract::key::Key;
use contract::request::{Asked, Source, Words};
use contract::{Code, Refusal};
use ledger::{HeldBy, LeaseStatus, Ledger, Reserved, Waiter};
use serde_json::{Value, json};
use shim::Setup;

use crate::cli::Context;
use crate::exit::{Exit, Failure};
use crate::inventory;
use crate::record;
use crate::table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Lists the leases in force, after ending those whose holders are gone
    List,
    /// Takes GPUs for something that is no container, until it is released or the machine boots
    Acquire(Acquire),
    /// Gives back what a holder has
    Release(Release),
}

#[derive(Debug, clap::Args)]
struct Acquire {
    /// Who takes them
    #[arg(long, value_name = "vm:NAME")]
    holder: String,
    #[command(flatten)]
    which: Which,
    /// MIG instances of this profile, as in 1g.10gb, instead of whole GPUs
    #[arg(long)]
    profile: Option<String>,
    /// Only GPUs of this product, as in a100
    #[arg(long)]
    kind: Option<String>,
    /// Says why these GPUs and no others
    #[arg(long)]
    explain: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Which {
    /// How many GPUs
    #[arg(long, value_name = "N")]
    count: Option<String>,
    /// Which: nvidia0, GPU-<uuid>, PCI address; instances as MIG-<uuid> or nvidia0:1; comma-separated
    #[arg(long, value_name = "IDS")]
    ids: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Release {
    #[command(flatten)]
    whose: Whose,
    /// Even if the container is still there: its processes keep the GPU open, and others get it too
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Whose {
    /// A holder by name
    #[arg(long, value_name = "vm:NAME")]
    holder: Option<String>,
    /// A container by its key, as `lease list` shows it
    #[arg(long)]
    key: Option<String>,
    /// A reservation by its token
    #[arg(long)]
    token: Option<String>,
    /// A reservation by its contract's id, as `lease list` shows it
    #[arg(long, value_name = "ID")]
    contract: Option<String>,
    /// All reservations of a pod, by its UID
    #[arg(long, value_name = "UID")]
    pod: Option<String>,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    match &args.action {
        Action::List if json => {
            let leases = in_force(&context.setup)?;
            context.document(&leases)?;
        }
        Action::List => list(&context.setup, context.out)?,
        Action::Acquire(args) => acquire(args, &mut context, json)?,
        Action::Release(args) => release(args, &mut context, json)?,
    }
    Ok(Exit::Done)
}

/// The leases in force; what was ended on the way is recorded.
fn in_force(setup: &Setup) -> Result<Vec<Value>, Failure> {
    let ledger = open(setup)?;
    let leases = ledger.leases().map_err(Failure::internal)?;
    shim::restore::settle(&ledger, setup).and_then(|()| shim::restore::orphans(&ledger)).map_err(Failure::internal)?;
    let reserved = ledger.reservations().map_err(Failure::internal)?;
    Ok(leases.iter().map(|status| document(status, &reserved)).collect())
}

fn open(setup: &Setup) -> Result<Ledger, Failure> {
    Ok(Ledger::open(setup.state_dir()).map_err(Failure::internal)?.limited(&setup.config))
}

/// Prints the leases as a table.
pub(crate) fn list(setup: &Setup, out: &mut dyn Write) -> Result<(), Failure> {
    let rows: Vec<_> = in_force(setup)?.iter().map(row).collect();
    let waiting: Vec<String> = open(setup)?.waiters().map_err(Failure::internal)?.iter().map(queued).collect();
    let waiting = table::lines("waiting: ", &waiting);
    if rows.is_empty() {
        return Ok(write!(out, "no GPU is leased\n{waiting}")?);
    }
    Ok(write!(out, "{}{waiting}", table::render(["GPU", "PCI", "HOLDER", "KEY", "BECAUSE"], &rows))?)
}

/// One of those who wait, in order.
fn queued(waiter: &Waiter) -> String {
    let request = &waiter.request;
    let count = u64::from(request.count);
    let of_kind = request.kind.as_ref().map_or_else(String::new, |kind| format!(" of kind {kind}"));
    let what = match (request.ids.as_slice(), &request.profile) {
        ([], None) => table::counted(count, "GPU", "GPUs") + &of_kind,
        ([], Some(profile)) => format!("{} of {profile}{of_kind}", table::counted(count, "instance", "instances")),
        (ids, _) => ids.join(", "),
    };
    format!("{} for {what}", table::short(waiter.name()))
}

fn row(lease: &Value) -> [String; 5] {
    let text = |field: &str| lease.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut row = ["gpu", "pci", "holder", "key", "because"].map(text);
    let [_, _, holder, _, because] = &mut row;
    *because = without_paths(because, holder);
    *holder = table::in_pod(lease.get("pod")).unwrap_or_else(|| table::short(holder).to_owned());
    if let Some(contract) = lease.get("contract").and_then(Value::as_str) {
        because.push_str(&format!(", contract {contract}"));
    }
    row
}

/// A reason without the paths and cgroups in it, which mostly repeat the holder's id; JSON has them. What cannot be told
/// is told whole: whoever mends it needs the path.
fn without_paths(because: &str, holder: &str) -> String {
    if because.contains("cannot") {
        return because.to_owned();
    }
    // A cgroup in systemd's form has no slash: `system.slice:docker:ID`.
    let place = |word: &&str| word.contains('/') || word.ends_with(&format!(":{holder}"));
    let words: Vec<&str> = because.split(' ').filter(|word| !place(word)).collect();
    words.join(" ").replace("its state folder exists", "container exists")
}

/// A lease for machines. A reservation's token is a secret and stays one.
fn document(status: &LeaseStatus, reserved: &[Reserved]) -> Value {
    let lease = status.lease.as_ref();
    let promised = |token: &str| reserved.iter().find(|reserved| reserved.token == token);
    let promised = status.tag.strip_prefix("r-").and_then(promised);
    let kind = lease.map(|lease| match lease.holder {
        HeldBy::Container { .. } => "container",
        HeldBy::Draining { .. } => "draining",
        HeldBy::Name { .. } => "name",
        HeldBy::Reservation { .. } => "reservation",
    });
    let pod = lease.and_then(|lease| lease.holder.pod());
    let (owner, shared) = match lease.map(|lease| &lease.holder) {
        Some(HeldBy::Container { owner, sharing, .. }) => (owner.as_deref(), sharing.is_some()),
        _ => (None, false),
    };
    json!({
        "pci": lease.map_or(status.slot.as_str(), |lease| lease.pci.as_str()),
        "partition": lease.and_then(|lease| lease.partition.as_ref()),
        "gpu": lease.filter(|lease| lease.minor.is_some()).map(|lease| lease.clone().granted().name()),
        "uuid": lease.and_then(|lease| lease.uuid.as_deref()),
        "kind": kind,
        "holder": lease.map(|lease| lease.holder.name()),
        "key": Key::parse(&status.tag).map(|key| key.to_string()),
        "pod": pod,
        "owner": owner,
        "sharing": shared.then_some("owner"),
        "contract": promised.map(|reserved| reserved.contract.id.as_str()),
        "since": lease.map(|lease| lease.since),
        "because": status.held_because,
    })
}

fn acquire(args: &Acquire, context: &mut Context<'_>, json: bool) -> Result<(), Failure> {
    let mut words = Words::default();
    let Which { count, ids } = &args.which;
    let which = [("count", "--count", count), ("ids", "--ids", ids)];
    for (name, flag, value) in
        which.into_iter().chain([("profile", "--profile", &args.profile), ("kind", "--kind", &args.kind)])
    {
        if let Some(value) = value {
            words.set(name, flag.to_owned(), value.clone());
        }
    }
    let Asked::Gpus(request) = words.ask(Source::CommandLine)? else {
        return Err(Refusal::new(
            Code::InvalidGpuRequest,
            "request-shape",
            "no GPU is asked for",
            "give --count or --ids",
        )
        .into());
    };
    // A virtual machine needs no driver of this node: what it names need only be there.
    let inventory = if request.ids.is_empty() {
        inventory::current(&context.setup)?
    } else {
        inventory::look(&context.setup).map_err(Failure::internal)?
    };
    let ledger = open(&context.setup)?;
    let granted = ledger.acquire_named(&inventory, &request, &args.holder);
    shim::restore::settle(&ledger, &context.setup).map_err(Failure::internal)?;
    let gpus = granted?;
    let fields = [("holder", args.holder.as_str().into()), ("gpus", ledger::audit::gpus(&gpus))];
    record::append(&context.setup, ledger::audit::Kind::Reserve, fields)?;
    let why = if args.explain { ledger.explain(&inventory, &request, &gpus) } else { Vec::new() };
    if json {
        let mut document = json!({ "holder": args.holder, "gpus": gpus });
        if args.explain {
            document["why"] = why.into();
        }
        return context.document(&document);
    }
    for gpu in &gpus {
        writeln!(context.out, "{} {} {}", gpu.name(), gpu.pci, gpu.uuid.as_deref().unwrap_or("-"))?;
    }
    Ok(write!(context.out, "{}", table::lines("why: ", &why))?)
}

fn release(args: &Release, context: &mut Context<'_>, json: bool) -> Result<(), Failure> {
    let ledger = open(&context.setup)?;
    let Whose { holder, key, token, contract, pod } = &args.whose;
    if let Some(key) = key {
        return release_key(&digits("--key", key)?, args.force, &ledger, context, json);
    }
    let (who, freed) = if let Some(name) = holder {
        let freed = ledger.release_named(name);
        if freed.as_ref().is_ok_and(Vec::is_empty) {
            return Err(not_by_name(&context.setup, &ledger, name)?);
        }
        (name.clone(), freed)
    } else if let Some(uid) = pod {
        let who = format!("pod {uid}");
        known(&ledger, &who, |reserved| reserved.pod.as_ref().is_some_and(|pod| pod.uid == *uid))?;
        (who, ledger.cancel_pod(uid))
    } else if let Some(id) = contract {
        let token = known(&ledger, &format!("contract {id}"), |reserved| reserved.contract.id == *id)?;
        (format!("contract {id}"), ledger.cancel(&token))
    } else {
        let token = digits("--token", token.as_deref().unwrap_or_default())?;
        known(&ledger, "this token", |reserved| reserved.token == token.as_str())?;
        ("a reservation".to_owned(), ledger.cancel(token.as_str()))
    };
    let freed = freed.map_err(Failure::internal)?;
    let gpus = freed.iter().map(|pci| json!({ "pci": pci })).collect();
    record::append(
        &context.setup,
        ledger::audit::Kind::Release,
        [("holder", who.as_str().into()), ("gpus", gpus), ("message", "released by the operator".into())],
    )?;
    match (json, freed.is_empty()) {
        (true, _) => context.document(&json!({ "released": freed })),
        (false, true) => Ok(writeln!(
            context.out,
            "{} is given up; its GPUs become free with the container that has them",
            table::one_line(&who)
        )?),
        (false, false) => Ok(writeln!(context.out, "released {}", freed.join(", "))?),
    }
}

/// The token of the first reservation that is meant.
fn known(ledger: &Ledger, who: &str, meant: impl Fn(&Reserved) -> bool) -> Result<String, Failure> {
    let reserved = ledger.reservations().map_err(Failure::internal)?;
    reserved.into_iter().find(meant).map(|reserved| reserved.token).ok_or_else(|| nothing(who))
}

fn nothing(who: &str) -> Failure {
    Failure::Wrong(format!("{} holds nothing; `quilt-gpu lease list` shows who holds what", table::one_line(who)))
}

/// A container's GPUs. Those of one that is still there only by force.
fn release_key(key: &Key, force: bool, ledger: &Ledger, context: &mut Context<'_>, json: bool) -> Result<(), Failure> {
    if !force {
        refuse_living(&context.setup, ledger, key)?;
    }
    let why = if force { "forced by the operator" } else { "released by the operator" };
    let done = shim::restore::force(ledger, &context.setup, key, why).map_err(Failure::internal)?;
    if done.gpus.is_empty() {
        return Err(nothing(key.as_str()));
    }
    let freed: Vec<&str> = done.gpus.iter().map(|gpu| gpu.pci.as_str()).collect();
    if json {
        return context.document(&json!({ "released": freed, "left_in": done.left_in }));
    }
    writeln!(context.out, "released {}", freed.join(", "))?;
    match &done.left_in {
        Some(cgroup) => Ok(writeln!(context.out, "{}", shim::restore::left_in(cgroup))?),
        None => Ok(()),
    }
}

/// Why nothing is released under a name: it is a container's, or nobody's.
fn not_by_name(setup: &Setup, ledger: &Ledger, name: &str) -> Result<Failure, Failure> {
    let leases = ledger.leases().map_err(Failure::internal)?;
    shim::restore::settle(ledger, setup).map_err(Failure::internal)?;
    let of_container = |status: &&LeaseStatus| matches!(status.lease.as_ref().map(|lease| &lease.holder), Some(HeldBy::Container { container, .. } | HeldBy::Draining { container, .. }) if table::means(name, container));
    let keys: BTreeSet<&str> = leases.iter().filter(of_container).map(|status| status.tag.as_str()).collect();
    let keys: Vec<String> = keys.into_iter().map(|key| format!("--key {key}")).collect();
    let name = table::one_line(name);
    Ok(Failure::Wrong(if keys.is_empty() {
        format!("nothing is held under the name {name}; `quilt-gpu lease list` shows who holds what")
    } else {
        format!("{name} is a container, which is released by its key: {}", keys.join(" or "))
    }))
}

/// Keys and tokens look alike.
fn digits(flag: &str, value: &str) -> Result<Key, Failure> {
    let wrong = || Failure::Usage(format!("{flag} {value:?} is not 32 lower-case hexadecimal digits"));
    Key::parse(value).ok_or_else(wrong)
}

/// A GPU that is given back while its container runs gets a second user.
fn refuse_living(setup: &Setup, ledger: &Ledger, key: &Key) -> Result<(), Failure> {
    let leases = ledger.leases().map_err(Failure::internal)?;
    shim::restore::settle(ledger, setup).map_err(Failure::internal)?;
    match leases.iter().find(|status| status.tag.trim_start_matches("d-") == key.as_str()) {
        Some(status) if !matches!(status.lease.as_ref().map(|lease| &lease.holder), Some(HeldBy::Name { .. })) => {
            Err(Failure::Wrong(format!(
                "{key} still holds {}: {}; delete the container and end its processes, or add --force",
                status.slot, status.held_because
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_repeats_no_id_and_keeps_the_key() {
        let (id, key) = ("5ea1".repeat(16), "0123456789abcdef0123456789abcdef");
        for (because, shown) in [
            (format!("its state folder /run/docker/runtime-runc/moby/{id} exists"), "container exists"),
            (format!("processes are left in its cgroup /docker/{id}"), "processes are left in its cgroup"),
            (
                format!("its container is deleted, but processes are left in its cgroup system.slice:docker:{id}"),
                "its container is deleted, but processes are left in its cgroup",
            ),
            ("its create still runs, process 7".to_owned(), "its create still runs, process 7"),
            (
                "it cannot be told whether its cgroup /a is empty: why".to_owned(),
                "it cannot be told whether its cgroup /a is empty: why",
            ),
        ] {
            let lease = json!({"gpu": "nvidia0", "pci": "p", "holder": id, "key": key, "because": because});
            assert_eq!(row(&lease), ["nvidia0", "p", "5ea15ea15ea1", key, shown]);
        }
        let pod = json!({"holder": id, "pod": {"uid": "u", "name": "p", "namespace": "n", "container": "c"}});
        assert_eq!(row(&pod)[2], "n/p/c");
        let named = json!({"holder": "vm:a", "because": "taken as vm:a until it is released", "contract": "c"});
        assert_eq!(row(&named), ["", "", "vm:a", "", "taken as vm:a until it is released, contract c"]);
    }
}
