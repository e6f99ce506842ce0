//! What `nvidia-smi -q -x` tells: its XML in, what was told out. No I/O.
//!
//! Only elements that all of NVIDIA's document types from v11 on have are read. A document that is not whole tells nothing:
//! what is missing in it cannot be known. Entities and document types with rules of their own are refused.

use contract::gpu::{MigMode, State, Unavailable};
use contract::inventory::pci_address;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::inventory::told::{Answer, Kind, Live, SMI, Silence, Told, ToldGpu, ToldInstance};

/// Deeper than any document of NVIDIA's.
const MAX_DEPTH: usize = 32;
const BEGIN: &str = "<?xml";
const ROOT: &str = "nvidia_smi_log";
/// How a driver that does not fit its libraries is told, in place of a document.
const MISMATCH: &str = "Driver/library version mismatch";

/// Reads what it printed.
pub(crate) fn told(printed: &[u8]) -> Answer {
    let failed = |why: String| Silence::failed(SMI, why);
    let text = std::str::from_utf8(printed).map_err(|_| failed("it prints text that is not UTF-8".into()))?;
    // Warnings may stand before the document.
    let Some(document) = text.find(BEGIN).and_then(|at| text.get(at..)) else {
        let words: String = text.lines().next().unwrap_or("nothing").chars().take(200).collect();
        let kind = if text.contains(MISMATCH) { Kind::Mismatch } else { Kind::Failed };
        return Err(Silence { kind, ..failed(format!("it prints no XML: {words}")) });
    };
    let read = Document::read(document).map_err(|why| failed(format!("its XML cannot be used: {why}")))?;
    read.told().map_err(|why| failed(format!("its XML cannot be used: {why}")))
}

/// The text of every element that has some, by the names on the way to it, in the order of the document.
type Texts = Vec<(String, String)>;

/// What stands in a document.
#[derive(Default)]
struct Document {
    /// Outside of GPUs.
    general: Texts,
    /// Of each GPU: the address in its `id`, its elements, and those of its MIG devices.
    gpus: Vec<OfGpu>,
}

#[derive(Default)]
struct OfGpu {
    id: Option<String>,
    texts: Texts,
    instances: Vec<Texts>,
}

impl Document {
    fn read(text: &str) -> Result<Self, String> {
        let mut reader = Reader::from_str(text);
        let (mut document, mut open, mut words) = (Self::default(), Vec::<String>::new(), String::new());
        let mut whole = false;
        loop {
            match reader.read_event().map_err(|cause| cause.to_string())? {
                Event::Start(element) => {
                    let name = element.name().as_ref().to_owned();
                    if open.is_empty() && (whole || name != ROOT) {
                        return Err(format!("the element {name} stands where {ROOT} must stand, once"));
                    }
                    if open.len() >= MAX_DEPTH {
                        return Err(format!("it is deeper than {MAX_DEPTH} elements"));
                    }
                    open.push(name);
                    document.begin(&open, &element)?;
                    words.clear();
                }
                Event::End(_) => {
                    document.take(&open, words.trim());
                    words.clear();
                    open.pop();
                    whole |= open.is_empty();
                }
                Event::Text(part) => words.push_str(&part),
                Event::GeneralRef(reference) => words.push(character(&reference)?),
                Event::DocType(rules) if rules.contains('[') => {
                    return Err("its document type has rules of its own".to_owned());
                }
                Event::Eof if whole => return Ok(document),
                Event::Eof => return Err("it ends in the middle".to_owned()),
                Event::Empty(_)
                | Event::CData(_)
                | Event::Comment(_)
                | Event::Decl(_)
                | Event::PI(_)
                | Event::DocType(_) => {}
            }
        }
    }

    /// An element begins: a GPU or a MIG device of one has its own texts.
    fn begin(&mut self, open: &[String], element: &BytesStart<'_>) -> Result<(), String> {
        match below(open).as_deref() {
            Some("gpu") => {
                let id = element.try_get_attribute("id").map_err(|cause| cause.to_string())?;
                self.gpus.push(OfGpu { id: id.map(|id| id.value.to_string()), ..OfGpu::default() });
            }
            Some("gpu/mig_devices/mig_device") => {
                if let Some(gpu) = self.gpus.last_mut() {
                    gpu.instances.push(Texts::new());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// An element ends that had this text.
    fn take(&mut self, open: &[String], text: &str) {
        let Some(path) = below(open).filter(|_| !text.is_empty()) else { return };
        let texts = match (path.strip_prefix("gpu/"), self.gpus.last_mut()) {
            (Some(path), Some(gpu)) => match (path.strip_prefix("mig_devices/mig_device/"), gpu.instances.last_mut()) {
                (Some(path), Some(instance)) => return instance.push((path.to_owned(), text.to_owned())),
                _ => return gpu.texts.push((path.to_owned(), text.to_owned())),
            },
            _ => &mut self.general,
        };
        texts.push((path, text.to_owned()));
    }

    fn told(&self) -> Result<Told, String> {
        let attached: Option<usize> = value(&self.general, "attached_gpus").and_then(|it| it.parse().ok());
        if attached != Some(self.gpus.len()) {
            let attached = attached.map_or_else(|| "no number of".to_owned(), |attached| attached.to_string());
            return Err(format!("it announces {attached} GPUs and describes {}", self.gpus.len()));
        }
        let gpus = self.gpus.iter().map(OfGpu::told).collect::<Result<Vec<_>, String>>()?;
        Ok(Told {
            source: SMI.to_owned(),
            driver_version: value(&self.general, "driver_version").map(str::to_owned),
            cuda_version: value(&self.general, "cuda_version").map(str::to_owned),
            gpus,
            links: Vec::new(),
        })
    }
}

impl OfGpu {
    fn told(&self) -> Result<ToldGpu, String> {
        let text = |path| value(&self.texts, path);
        let pci = text("pci/pci_bus_id").or(self.id.as_deref()).and_then(pci_address);
        let mode = |path| match text(path) {
            Some("Enabled") => Some(true),
            Some("Disabled") => Some(false),
            _ => None,
        };
        let enabled = mode("mig_mode/current_mig");
        Ok(ToldGpu {
            pci: pci.ok_or("a GPU in it has no PCI address")?,
            uuid: text("uuid").map(str::to_owned),
            minor: text("minor_number").and_then(|minor| minor.parse().ok()),
            model: text("product_name").map(str::to_owned),
            memory_mb: text("fb_memory_usage/total").and_then(mebibytes),
            compute_capability: None,
            virtualization: text("gpu_virtualization_mode/virtualization_mode")
                .or(none(&self.texts, "gpu_virtualization_mode/virtualization_mode"))
                .and_then(virtualization),
            mig: enabled.map(|enabled| MigMode { enabled, pending: mode("mig_mode/pending_mig").unwrap_or(enabled) }),
            instances: instances(&self.instances)?,
            unavailable: self.trouble(),
            live: self.live(),
        })
    }

    /// What it does now, each with its unit: `3 %`, `1024 MiB`, `35 C`, `56.12 W`. The power has had three names.
    fn live(&self) -> Live {
        let text = |path| value(&self.texts, path);
        let whole = |path, unit| text(path)?.strip_suffix(unit)?.trim().parse().ok();
        let power =
            ["gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"]
                .into_iter()
                .find_map(|path| milliwatts(text(path)?));
        Live {
            utilization_percent: whole("utilization/gpu_util", "%"),
            memory_used_mb: text("fb_memory_usage/used").and_then(mebibytes),
            temperature_c: whole("temperature/gpu_temp", "C"),
            power_mw: power,
        }
    }

    /// What any element says about its health.
    fn trouble(&self) -> Option<Unavailable> {
        let says = |text: &str| self.texts.iter().any(|(_, value)| value == text);
        let yes = |end: &str| self.texts.iter().any(|(path, value)| path.ends_with(end) && value == "Yes");
        let failing = |why: &str| Some(Unavailable::new(State::Failing, why));
        if says("GPU is lost") || says("GPU is inaccessible") {
            return Some(Unavailable::new(
                State::Lost,
                "nvidia-smi says that it is lost; reboot, and if that does not mend it, look at its seat and power",
            ));
        }
        if yes("remapped_row_failure") {
            return failing("a row of its memory could not be remapped: it has to be replaced");
        }
        let action = value(&self.texts, "gpu_recovery_action");
        let reset = says("GPU requires reset")
            || yes("reset_required")
            || yes("remapped_row_pending")
            || yes("retired_pages/pending_retirement")
            || matches!(action, Some("Reset" | "Drain and Reset"));
        match action {
            Some("Reboot") => failing("the driver asks for a reboot of the node"),
            _ if reset => failing("nvidia-smi says that it needs a reset: `nvidia-smi --gpu-reset`, or reboot"),
            _ => None,
        }
    }
}

fn instances(of: &[Texts]) -> Result<Vec<ToldInstance>, String> {
    let number = |texts: &Texts, path: &str| -> Result<u32, String> {
        let text = value(texts, path).and_then(|text| text.parse().ok());
        text.ok_or_else(|| format!("a MIG device in it has no {path}"))
    };
    let mut instances = Vec::new();
    for texts in of {
        instances.push(ToldInstance {
            index: number(texts, "index")?,
            gi: number(texts, "gpu_instance_id")?,
            ci: number(texts, "compute_instance_id")?,
            uuid: value(texts, "uuid").map(str::to_owned),
            profile: None,
            memory_mb: value(texts, "fb_memory_usage/total").and_then(mebibytes),
        });
    }
    // Documents were seen where all have the index 0.
    let repeated = instances.iter().enumerate().any(|(at, it)| instances.iter().take(at).any(|b| b.index == it.index));
    if repeated {
        instances.iter_mut().zip(0..).for_each(|(instance, at)| instance.index = at);
    }
    Ok(instances)
}

/// `56.12 W`, in thousandths.
fn milliwatts(text: &str) -> Option<u32> {
    let (whole, part) = text.strip_suffix('W')?.trim().split_once('.')?;
    let part: u32 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(part)
}

/// The names of the open elements below the root.
fn below(open: &[String]) -> Option<String> {
    let (root, names) = open.split_first()?;
    (root == ROOT && !names.is_empty()).then(|| names.join("/"))
}

/// A reference that XML itself knows, in place of the character; a document type could give any other any meaning.
fn character(reference: &quick_xml::events::BytesRef<'_>) -> Result<char, String> {
    let refused = || format!("it uses the entity {}", reference.chars().take(40).collect::<String>());
    if let Some(character) = reference.resolve_char_ref().map_err(|cause| cause.to_string())? {
        return Ok(character);
    }
    Ok(match reference.as_ref() {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "apos" => '\'',
        "quot" => '"',
        _ => return Err(refused()),
    })
}

fn first<'a>(texts: &'a Texts, path: &str) -> Option<&'a str> {
    texts.iter().find(|(is, _)| is == path).map(|(_, text)| text.as_str())
}

/// The text of an element where it is a value.
fn value<'a>(texts: &'a Texts, path: &str) -> Option<&'a str> {
    const NONE: [&str; 8] = [
        "N/A",
        "None",
        "Not Found",
        "GPU is lost",
        "GPU is inaccessible",
        "Unknown Error",
        "Insufficient Permissions",
        "Requested functionality has been deprecated",
    ];
    first(texts, path).filter(|text| !NONE.contains(text) && !text.starts_with('['))
}

/// The word that is a value for virtualization alone.
fn none<'a>(texts: &'a Texts, path: &str) -> Option<&'a str> {
    first(texts, path).filter(|text| *text == "None")
}

fn mebibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" MiB")?.parse().ok()
}

/// The mode in NVML's words.
fn virtualization(word: &str) -> Option<String> {
    let word = match word {
        "None" => "none",
        "Pass-Through" => "passthrough",
        "VGPU" => "vgpu",
        "Host VGPU" => "host-vgpu",
        "Host VSGA" => "host-vsga",
        _ => return None,
    };
    Some(word.to_owned())
}

#[cfg(test)]
mod tests;
