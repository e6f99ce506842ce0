//! `quilt-gpu contract`: reservations for a control plane, and the contracts in force.

use std::io::Read;
use std::path::PathBuf;

use contract::inventory::Inventory;
use contract::key::Key;
use contract::request::{Asked, Request, from_json};
use contract::{Code, Contract, Refusal};
use ledger::audit::Kind;
use ledger::{HeldBy, Ledger, PodContainer, Recipient, Reserved, Reserving};
use serde::Serialize;
use serde_json::{Value, json};
use shim::Setup;

use crate::cli::{Context, Format, not_offered};
use crate::exit::{Exit, Failure};
use crate::inventory;
use crate::record;
use crate::table;

/// Largest request document, in bytes.
const MAX_REQUEST: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Reserves GPUs for a container that does not exist yet; prints its contract and token as JSON
    Prepare(Prepare),
    /// Shows the contracts in force and those of reservations, or one of them as JSON
    Show {
        /// The container's key, or the contract's id
        #[arg(value_name = "KEY|ID")]
        which: Option<String>,
    },
    /// Checks that contracts are trusted and that the node is still what they rest on
    Verify {
        /// The container's key; all without it
        key: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Prepare {
    /// The control plane's JSON: {"gpu_count":1,"gpu_ids":["nvidia0"], …}; `-` is stdin
    #[arg(long, value_name = "FILE|-")]
    request: PathBuf,
    /// The contract's id, 32 hexadecimal digits [default: random]
    #[arg(long)]
    id: Option<String>,
    /// Only for a container of the pod with this UID, and for every restart of it
    #[arg(long, value_name = "UID", requires = "container")]
    pod: Option<String>,
    /// That container's name in the pod
    #[arg(long, value_name = "NAME", requires = "pod")]
    container: Option<String>,
    /// Whose the container will be: a name of [[owners]], or namespace:NAME. Your word, as the log has it; a container that an
    /// engine attests to be another's is refused
    #[arg(long, value_name = "OWNER", value_parser = owner)]
    owner: Option<String>,
    /// Says why these GPUs and no others
    #[arg(long)]
    explain: bool,
}

fn owner(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("namespace:").unwrap_or(text);
    let plain = contract::key::id_is_plain(name);
    plain.then(|| text.to_owned()).ok_or("write letters, digits and . - _ +, or namespace: and these".to_owned())
}

impl Prepare {
    /// The one container that may bring the token.
    fn bound_to(&self) -> Result<Option<PodContainer>, Failure> {
        let (Some(uid), Some(container)) = (&self.pod, &self.container) else { return Ok(None) };
        for (flag, value) in [("--pod", uid), ("--container", container)] {
            if !contract::key::id_is_plain(value) {
                return Err(Failure::Usage(format!(
                    "{flag} {value:?} is not made of letters, digits, '.', '-' and '_'"
                )));
            }
        }
        Ok(Some(PodContainer::new(uid, container)))
    }
}

impl Args {
    /// Whether the caller is a control plane, which reads refusals as JSON too.
    pub(crate) fn speaks_json(&self) -> bool {
        matches!(self.action, Action::Prepare(_))
    }
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    match &args.action {
        Action::Prepare(args) => prepare(args, &mut context)?,
        Action::Show { which: Some(which) } => show_one(which, &mut context)?,
        Action::Show { which: None } => show_all(&mut context)?,
        Action::Verify { key } => return verify(key.as_deref(), &mut context),
    }
    Ok(Exit::Done)
}

fn prepare(args: &Prepare, context: &mut Context<'_>) -> Result<(), Failure> {
    if let Some(other) = context.format.filter(|format| *format != Format::Json) {
        return Err(not_offered(other, "json"));
    }
    let id = match &args.id {
        Some(id) if Key::parse(id).is_some() => id.clone(),
        Some(id) => return Err(Failure::Usage(format!("--id {id:?} is not 32 lower-case hexadecimal digits"))),
        None => node::random_hex128().map_err(Failure::internal)?,
    };
    let pod = args.bound_to()?;
    match from_json(&read(&args.request)?) {
        Ok(Asked::Gpus(request)) => reserve(&request, args, &id, pod.as_ref(), context),
        Ok(_) => context.document(
            &json!({ "token": null, "contract": null, "message": "no GPU is asked for, and none is granted" }),
        ),
        Err(refusal) => Err(refuse(refusal, None, context)),
    }
}

/// What a control plane gets: who brings the token within this time gets what the contract lists.
#[derive(Serialize)]
struct Prepared<'a> {
    token: &'a str,
    seconds: u64,
    /// Whose it is; anybody's when nobody is named.
    pod: Option<&'a PodContainer>,
    contract: &'a Contract,
    /// Why these GPUs, when that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<Vec<String>>,
}

fn reserve(
    request: &Request,
    args: &Prepare,
    id: &str,
    pod: Option<&PodContainer>,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let setup = &context.setup;
    let limits = &setup.config.request;
    let seconds = if pod.is_some() { limits.pod_reservation_seconds } else { limits.reservation_seconds };
    let ledger = Ledger::open(setup.state_dir()).map_err(Failure::internal)?.limited(&setup.config);
    let owner = args.owner.as_deref();
    let whose = Reserving { seconds, pod, owner, id: args.id.is_some().then_some(id) };
    let reserved = shim::within_ceilings(request, &setup.config)
        .and_then(|()| from_the_node(setup, &ledger, request, &whose, id))
        .map(|(inventory, reserved)| {
            (args.explain.then(|| ledger.explain(&inventory, request, &reserved.contract.gpus)), reserved)
        });
    let (why, reserved) = reserved.map_err(|refusal| refuse(refusal, Some(request), context))?;
    let fields = [
        ("contract", reserved.contract.id.as_str().into()),
        ("pod", json!(pod)),
        ("owner", json!(owner)),
        ("request", json!(request)),
        ("gpus", ledger::audit::gpus(&reserved.contract.gpus)),
        ("seconds", seconds.into()),
    ];
    let recorded = shim::restore::settle(&ledger, setup)
        .map_err(Failure::internal)
        .and_then(|()| record::append(setup, Kind::Reserve, fields));
    if let Err(failure) = recorded {
        // Nobody learns this token; without this its time would have to run out.
        let _ = ledger.cancel(&reserved.token);
        return Err(failure);
    }
    context.document(&Prepared { token: &reserved.token, seconds, pod, contract: &reserved.contract, why })
}

/// Reserves from an inventory that is what the node is, driver files included: what changed since it was made is looked at
/// anew, once. The container that brings the token could not mend it.
fn from_the_node(
    setup: &Setup,
    ledger: &Ledger,
    request: &Request,
    whose: &Reserving<'_>,
    id: &str,
) -> Result<(Inventory, Reserved), Refusal> {
    let attempt = |inventory: &Inventory| {
        ledger.reserve(inventory, request, whose, &mut |gpus| {
            let to = Recipient { key: None, owner: whose.owner };
            let contract = ledger::draft(inventory, gpus, request, &setup.config.policy, id, to, node::now())?;
            shim::trusted(&contract, setup).map(|()| contract)
        })
    };
    let mut inventory = inventory::current(setup)?;
    let mut reserved = attempt(&inventory);
    if reserved.as_ref().is_err_and(|refusal| refusal.code == Code::ContractStale) {
        inventory = inventory::renewed(setup)?;
        reserved = attempt(&inventory);
    }
    reserved.map(|reserved| (inventory, reserved))
}

/// A refusal on its way out; the log may be unwritable, and the refusal stands all the same.
fn refuse(refusal: Refusal, request: Option<&Request>, context: &Context<'_>) -> Failure {
    let _ = record::append(
        &context.setup,
        Kind::Refuse,
        [("request", json!(request)), ("refusals", json!([refusal.to_json()]))],
    );
    refusal.into()
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    let failed = |cause| Failure::Usage(format!("cannot read the request {}: {cause}", path.display()));
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        std::io::stdin().lock().take(MAX_REQUEST).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_REQUEST).read_to_end(&mut bytes)).map_err(failed)?;
    }
    Ok(bytes)
}

/// A contract in force with its key, or why it is not trusted.
type Keyed = (Key, Result<Contract, Refusal>);

/// All contracts by key; one that is not trusted is listed with the reason.
fn in_force(context: &Context<'_>) -> Result<Vec<Keyed>, Failure> {
    let ledger = Ledger::open(context.setup.state_dir()).map_err(Failure::internal)?;
    ledger.contracts().map_err(Failure::internal)
}

/// Contracts that wait for their containers. Their tokens stay secret.
fn reserved(context: &Context<'_>) -> Result<Vec<Contract>, Failure> {
    let ledger = Ledger::open(context.setup.state_dir()).map_err(Failure::internal)?;
    Ok(ledger.reservations().map_err(Failure::internal)?.into_iter().map(|reserved| reserved.contract).collect())
}

fn show_one(which: &str, context: &mut Context<'_>) -> Result<(), Failure> {
    let has_id = |contract: &Contract| contract.id == which;
    let found = in_force(context)?
        .into_iter()
        .find(|(key, contract)| key.as_str() == which || contract.as_ref().is_ok_and(has_id))
        .map(|(_, contract)| contract);
    match found.or(reserved(context)?.into_iter().find(has_id).map(Ok)) {
        Some(contract) => context.document(&contract?),
        None => Err(Failure::Wrong(format!(
            "no contract in force or reserved has the key or id {which:?}; `quilt-gpu contract show` lists them"
        ))),
    }
}

fn show_all(context: &mut Context<'_>) -> Result<(), Failure> {
    let json = context.json()?;
    let ledger = Ledger::open(context.setup.state_dir()).map_err(Failure::internal)?;
    let mut all = Vec::new();
    for (key, contract) in in_force(context)? {
        let holder = ledger.holder(&key);
        let name = holder.as_ref().map(|holder| holder.name().to_owned());
        let pod = holder.as_ref().and_then(HeldBy::pod).cloned();
        all.push(Shown { key: Some(key), holder: name, pod, contract });
    }
    for Reserved { contract, pod, .. } in ledger.reservations().map_err(Failure::internal)? {
        all.push(Shown { key: None, holder: None, pod, contract: Ok(contract) });
    }
    if json {
        return context.document(&all.iter().map(Shown::document).collect::<Vec<_>>());
    }
    if all.is_empty() {
        return Ok(writeln!(context.out, "no contract is in force or reserved")?);
    }
    let rows: Vec<_> = all.iter().map(Shown::row).collect();
    Ok(write!(context.out, "{}", table::render(["KEY", "ID", "HOLDER", "GPUS", "CAPABILITIES"], &rows))?)
}

/// A contract, or why it is not trusted, and whose it is. A reservation has no key yet.
struct Shown {
    key: Option<Key>,
    holder: Option<String>,
    pod: Option<PodContainer>,
    contract: Result<Contract, Refusal>,
}

impl Shown {
    fn document(&self) -> Value {
        json!({
            "key": self.key.as_ref().map(Key::as_str),
            "holder": self.holder,
            "pod": self.pod,
            "contract": self.contract.as_ref().ok(),
            "refusal": self.contract.as_ref().err().map(Refusal::to_json),
        })
    }

    fn row(&self) -> [String; 5] {
        let key = self.key.as_ref().map_or("(reserved)", Key::as_str).to_owned();
        let holder = self.holder.as_deref().map_or("", table::short).to_owned();
        let holder = table::in_pod(Some(&json!(self.pod))).unwrap_or(holder);
        match &self.contract {
            Ok(contract) => [key, contract.id.clone(), holder, names(contract), contract.request.capabilities.list()],
            Err(refusal) => [key, String::new(), holder, String::new(), refusal.to_string()],
        }
    }
}

fn names(contract: &Contract) -> String {
    contract.gpus.iter().map(contract::Granted::name).collect::<Vec<_>>().join(",")
}

fn verify(key: Option<&str>, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let json = context.json()?;
    let mut all = in_force(context)?;
    if let Some(wanted) = key {
        all.retain(|(key, _)| key.as_str() == wanted);
        if all.is_empty() {
            return Err(Failure::Wrong(format!("no contract in force has the key {wanted:?}")));
        }
    }
    let judged: Vec<(Key, Option<Refusal>)> = all
        .into_iter()
        .map(|(key, contract)| (key, contract.and_then(|contract| shim::trusted(&contract, &context.setup)).err()))
        .collect();
    let exit = if judged.iter().all(|(_, refusal)| refusal.is_none()) { Exit::Done } else { Exit::Refused };
    if json {
        let list: Vec<_> = judged
            .iter()
            .map(|(key, refusal)| json!({ "key": key.as_str(), "refusal": refusal.as_ref().map(Refusal::to_json) }))
            .collect();
        context.document(&list)?;
    } else if judged.is_empty() {
        writeln!(context.out, "no contract is in force")?;
    } else {
        let rows: Vec<_> = judged
            .iter()
            .map(|(key, refusal)| {
                [key.to_string(), refusal.as_ref().map_or_else(|| "holds".to_owned(), Refusal::to_string)]
            })
            .collect();
        write!(context.out, "{}", table::render(["KEY", "CONTRACT"], &rows))?;
    }
    Ok(exit)
}
