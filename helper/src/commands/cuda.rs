//! `quilt-gpu cuda check`: whether the CUDA of an image runs on this node's driver and GPUs, before anybody starts it.

use std::path::PathBuf;

use contract::cuda::{self, Driver, Finding, Image, Verdict};
use contract::inventory::Inventory;
use contract::json::{Node, parse_data};
use contract::{Code, Products, Refusal};
use serde::Serialize;

use crate::cli::Context;
use crate::exit::{Exit, Failure};
use crate::input;
use crate::inventory;
use crate::table;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// What an image's NVIDIA_REQUIRE_…, CUDA_VERSION and NVIDIA_DISABLE_REQUIRE mean on this node; starts nothing
    Check {
        #[command(flatten)]
        what: What,
    },
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct What {
    /// An image's environment, a NAME=value a line; - is stdin
    #[arg(long, value_name = "FILE|-")]
    image_env: Option<PathBuf>,
    /// A config.json, or the bundle that holds one
    #[arg(value_name = "CONFIG.json|BUNDLE")]
    path: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, mut context: Context<'_>) -> Result<Exit, Failure> {
    let Action::Check { what } = &args.action;
    let json = context.json()?;
    let environment = environment(what)?;
    let inventory = inventory::look(&context.setup).map_err(Failure::Internal)?;
    if inventory.facts.driver_version.is_none() {
        let message = "this node has no NVIDIA driver loaded: there is nothing to hold an image against";
        let help = "load the driver; `quilt-gpu inventory` says what is missing";
        return Err(Refusal::new(Code::DriverNotReady, "driver-not-ready", message, help).into());
    }
    let answer = Answer::of(&environment, &inventory);
    if json {
        context.document(&answer)?
    } else {
        write!(context.out, "{}", answer.text())?
    }
    Ok(if answer.blocked { Exit::Refused } else { Exit::Done })
}

/// The variables that somebody gave, in order.
fn environment(what: &What) -> Result<Vec<String>, Failure> {
    if let Some(file) = &what.image_env {
        return Ok(input::text(file)?.lines().map(str::to_owned).collect());
    }
    let path = what.path.clone().unwrap_or_default();
    let file = if path.is_dir() { path.join("config.json") } else { path };
    let text = input::text(&file)?;
    let wrong = |why: String| Failure::Usage(format!("{}: {why}", file.display()));
    let spec = parse_data(text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    if spec.get("process").is_none() {
        return Err(wrong("this is no config.json of a container: it has no process".to_owned()));
    }
    let items = spec.path(&["process", "env"]).map(Node::items).unwrap_or_default();
    Ok(items.iter().map(|item| item.as_str().unwrap_or_default().to_owned()).collect())
}

/// What there is to say, in the public form.
#[derive(Serialize)]
struct Answer<'a> {
    verdict: Verdict,
    /// Whether the image cannot work here, and does not ask to be tried all the same.
    blocked: bool,
    driver: Option<&'a str>,
    /// The newest CUDA that the driver serves, when known.
    cuda: Option<String>,
    gpus: Vec<Kind>,
    findings: Vec<Told>,
}

/// One finding.
#[derive(Serialize)]
struct Told {
    verdict: Verdict,
    variable: String,
    condition: String,
    message: String,
    help: String,
}

/// One kind of GPU that containers can get here.
#[derive(Serialize)]
struct Kind {
    model: Option<String>,
    compute_capability: Option<String>,
}

impl<'a> Answer<'a> {
    fn of(environment: &'a [String], inventory: &'a Inventory) -> Self {
        let mut image = Image::default();
        environment.iter().enumerate().for_each(|(index, entry)| image.read(index, entry));
        // What a container cannot get says nothing about it.
        let mut kinds = Products::default();
        inventory.gpus.iter().filter(|gpu| gpu.usable()).for_each(|gpu| kinds.add(gpu));
        let version = inventory.facts.driver_version.as_deref();
        let driver = Driver::of(version, inventory.cuda_version.as_deref());
        let findings = cuda::judge(&image, &driver, &kinds);
        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Supported);
        let blocked = findings.iter().any(|finding| image.is_blocked_by(finding));
        let told = |finding: &Finding<'_>| {
            let (message, help) = finding.words(&driver, &kinds);
            let (variable, condition) = (finding.variable.to_owned(), finding.condition());
            Told { verdict: finding.verdict, variable, condition, message, help }
        };
        let findings = findings.iter().map(told).collect();
        let known = |text: String| Some(text).filter(|text| !text.is_empty());
        let kind = |(model, capability)| Kind { model: known(model), compute_capability: known(capability) };
        let gpus = kinds.0.into_iter().map(kind).collect();
        Self { verdict, blocked, driver: version, cuda: driver.cuda().map(|cuda| cuda.to_string()), gpus, findings }
    }

    fn text(&self) -> String {
        let mut out = format!("{}\n", self.verdict.words());
        for finding in &self.findings {
            let help = if finding.help.is_empty() { String::new() } else { format!("; {}", finding.help) };
            let line = format!("{}: {} ({}){help}", finding.variable, finding.message, finding.condition);
            out.push_str(&format!("{}\n", table::one_line(&line)));
        }
        let serves = self.cuda.as_ref().map_or_else(String::new, |cuda| format!(", for CUDA {cuda} and older"));
        out.push_str(&format!("driver {}{serves}\n", self.driver.unwrap_or("unknown")));
        for gpu in &self.gpus {
            let model = table::one_line(gpu.model.as_deref().unwrap_or("a GPU whose model is not known"));
            let capability = gpu.compute_capability.as_deref();
            out.push_str(&match capability {
                Some(capability) => format!("{model}, compute capability {capability}\n"),
                None => format!("{model}, whose compute capability is not known\n"),
            });
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use contract::gpu::Gpu;
    use contract::inventory::Facts;

    use super::*;

    fn node(model: &str, capability: &str) -> Inventory {
        let gpu = Gpu { model: Some(model.into()), compute_capability: Some(capability.into()), ..Gpu::default() };
        let facts = Facts { driver_version: Some("535.104.05".into()), ..Facts::default() };
        Inventory { facts, gpus: vec![gpu.clone(), gpu], cuda_version: Some("12.2".into()), ..Inventory::default() }
    }

    #[test]
    fn the_answer_for_people_and_machines() {
        let inventory = node("NVIDIA GeForce RTX 3090", "8.6");
        for (environment, verdict, blocked, says) in [
            (
                "A=b",
                "supported",
                false,
                "supported\ndriver 535.104.05, for CUDA 12.2 and older\nNVIDIA GeForce RTX 3090, compute capability 8.6\n",
            ),
            ("CUDA_VERSION=12.8.1", "minor-version", false, "newer features are missing\nCUDA_VERSION: "),
            ("CUDA_VERSION=13.0.1", "needs-driver", true, "(cuda>=13.0); install driver 580.65.06 or newer"),
            (
                "NVIDIA_REQUIRE_ARCH=arch>=9.0",
                "unmet",
                true,
                "requires arch>=9.0; this node has driver 535.104.05, CUDA 12.2, NVIDIA GeForce RTX 3090",
            ),
        ] {
            let environment = [environment.to_owned()];
            let answer = Answer::of(&environment, &inventory);
            assert!(answer.text().contains(says), "{environment:?}: {}", answer.text());
            let document = serde_json::to_value(&answer).unwrap();
            assert_eq!(document["verdict"], verdict, "{document}");
            assert_eq!(document["blocked"], blocked, "{document}");
            assert_eq!(document["gpus"].as_array().unwrap().len(), 1, "{document}");
        }
        // Nobody gets a GPU that is not usable, so its kind does not count.
        let mut lost = node("Tesla V100", "7.0");
        let lost_gpu = contract::gpu::Unavailable::new(contract::gpu::State::Lost, "x");
        lost.gpus.iter_mut().for_each(|gpu| gpu.unavailable = Some(lost_gpu.clone()));
        let environment = ["NVIDIA_REQUIRE_ARCH=arch>=9.0".to_owned()];
        assert!(Answer::of(&environment, &lost).findings.is_empty());
    }
}
