//! Whether the CUDA that an image was built for runs on this node: what the image's variables say against the driver and the
//! GPU. A judgement of bytes; it must not read the node or the image's files.
//!
//! What is not known (a driver newer than our table, a GPU that tells no model) counts as fitting: a warning without
//! ground is noise, and a refusal without ground is worse.

mod require;
mod toolkits;
mod words;

use serde::Serialize;

use crate::{Products, word};
use require::Facts;

/// A version of up to three numbers, each below 65536; what is missing is 0. One word, since the runtime compares many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u64);

impl Version {
    const fn new([major, minor, patch]: [u16; 3]) -> Self {
        Self((major as u64) << 32 | (minor as u64) << 16 | patch as u64)
    }

    /// Reads `535`, `12.4`, `535.104.05`; further numbers do not count.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (mut numbers, mut index, mut digits) = ([0u32; 3], 0usize, 0u8);
        for byte in text.bytes() {
            match byte {
                b'.' if digits > 0 => (index, digits) = (index + 1, 0),
                b'0'..=b'9' if digits < 9 => {
                    digits += 1;
                    if let Some(number) = numbers.get_mut(index) {
                        *number = *number * 10 + u32::from(byte - b'0');
                    }
                }
                _ => return None,
            }
        }
        let [major, minor, patch] = numbers;
        let fits = digits > 0 && (major | minor | patch) >> 16 == 0;
        fits.then(|| Self(u64::from(major) << 32 | u64::from(minor) << 16 | u64::from(patch)))
    }

    fn major(self) -> u64 {
        self.0 >> 32
    }

    /// Major and minor: all that CUDA's compatibility is about.
    fn short(self) -> Self {
        Self(self.0 & !0xffff)
    }
}

impl std::fmt::Display for Version {
    /// As NVIDIA writes CUDA's versions with two numbers and the driver's with three, the later two of two digits.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor, patch) = (self.major(), self.0 >> 16 & 0xffff, self.0 & 0xffff);
        write!(f, "{major}.{minor}")?;
        if major >= 100 && patch > 0 { write!(f, ".{patch:02}") } else { Ok(()) }
    }
}

/// What came out, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The driver is made for this version of CUDA or a newer one.
    Supported,
    /// The driver is older, of the same major version: programs run, newer features are missing.
    MinorVersion,
    /// Runs only with the compatibility libraries (`cuda-compat`) of the image, which data-centre GPUs accept.
    ForwardCompatibility,
    /// Runs with a newer driver only.
    NeedsDriver,
    /// The toolkit does not make code for this GPU.
    Architecture,
    /// Something else that the image requires is not so.
    Unmet,
}

impl Verdict {
    /// What is true, for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::MinorVersion => "minor version compatibility: it runs, newer features are missing",
            Self::ForwardCompatibility => "needs a newer driver, or the image's compatibility libraries",
            Self::NeedsDriver => "needs a newer driver",
            Self::Architecture => "the toolkit does not target this GPU",
            Self::Unmet => "a requirement of the image is not met",
        }
    }
}

/// One thing that was found; with [`Verdict::Supported`] it is only worth knowing. [`Finding::words`] has the sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding<'a> {
    /// How much it weighs.
    pub verdict: Verdict,
    /// The variable it follows from.
    pub variable: &'a str,
    /// That variable's position in the environment.
    pub index: usize,
    /// What the image wrote, unless the condition follows from the version it was built for.
    written: &'a str,
    /// That version.
    toolkit: Version,
    /// The first or, with `below`, the last version of CUDA that would do.
    bound: Version,
    below: bool,
    /// Which of the kinds of GPUs it is about.
    kind: usize,
}

impl Finding<'_> {
    /// The condition that decided: `cuda>=12.8`.
    #[must_use]
    pub fn condition(&self) -> String {
        if !self.written.is_empty() {
            return short(self.written).to_owned();
        }
        format!("cuda{}{}", if self.below { "<=" } else { ">=" }, self.bound)
    }

    /// What it comes to, in a few words.
    #[must_use]
    pub fn brief(&self) -> &'static str {
        match self.verdict {
            Verdict::Supported if self.variable == DISABLE => "requirements refuse nothing",
            Verdict::Supported if self.written.is_empty() => "older than the GPU, which runs it",
            Verdict::Supported => "no condition, and counts for nothing",
            verdict => verdict.words(),
        }
    }
}

/// One variable of an environment.
#[derive(Debug, Clone, Copy)]
struct Variable<'a> {
    index: usize,
    name: &'a str,
    value: &'a str,
}

/// The variable that asks that requirements refuse nothing.
const DISABLE: &str = "NVIDIA_DISABLE_REQUIRE";
/// Most requirements that are read; NVIDIA's images have one.
const MOST: usize = 16;
/// Longest condition that is told: a tenant wrote it, and it goes to the audit.
const TOLD: usize = 64;

/// What an image says about the CUDA it wants.
#[derive(Debug, Default)]
pub struct Image<'a> {
    requirements: Vec<Variable<'a>>,
    version: Option<Variable<'a>>,
    disabled: Option<Variable<'a>>,
}

impl<'a> Image<'a> {
    /// Reads the next entry of an environment, `NAME=value`. Later copies of a variable win, as in the container.
    pub fn read(&mut self, index: usize, entry: &'a str) {
        let at = entry.bytes().position(|byte| byte == b'=').unwrap_or(entry.len());
        let (Some(name), Some(value)) = (entry.get(..at), entry.get(at + 1..)) else { return };
        let variable = Variable { index, name, value };
        if name == "CUDA_VERSION" {
            self.version = Some(variable);
        } else if name == DISABLE {
            let on = matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
            self.disabled = on.then_some(variable);
        } else if name.starts_with("NVIDIA_REQUIRE_") && !name.starts_with("NVIDIA_REQUIRE_JETPACK") {
            if let Some(earlier) = self.requirements.iter_mut().find(|earlier| earlier.name == name) {
                *earlier = variable;
            } else if self.requirements.len() < MOST {
                self.requirements.push(variable);
            }
        }
    }

    /// Whether a finding keeps a container from working, and the image does not ask that requirements refuse nothing.
    #[must_use]
    pub fn is_blocked_by(&self, finding: &Finding<'_>) -> bool {
        self.disabled.is_none() && finding.verdict >= Verdict::NeedsDriver
    }
}

/// Whether these GPUs take the compatibility libraries of an image (`cuda-compat`) in place of the node's driver's, where its
/// version is this one: theirs is of a higher major version, and NVIDIA's driver lets data-centre products alone use them.
#[must_use]
pub fn takes(brought: &str, driver: &str, products: &Products) -> Option<bool> {
    let newer = Version::parse(brought)?.major() > Version::parse(driver)?.major();
    let of_data_centre =
        |(model, _): &(String, String)| !model.is_empty() && toolkits::brand(model) == toolkits::DATA_CENTRE;
    newer.then(|| !products.0.is_empty() && products.0.iter().all(of_data_centre))
}

/// What the node's driver is.
#[derive(Debug, Clone, Copy)]
pub struct Driver {
    version: Option<Version>,
    cuda: Option<Version>,
}

impl Driver {
    /// The driver by its version, and the CUDA version it says it serves; without the latter it follows from the former.
    #[must_use]
    pub fn of(version: Option<&str>, cuda: Option<&str>) -> Self {
        let version = version.and_then(Version::parse);
        let cuda = cuda.and_then(Version::parse).or_else(|| version.and_then(toolkits::served_by));
        Self { version, cuda }
    }

    /// The highest version of CUDA that it serves, when known.
    #[must_use]
    pub fn cuda(&self) -> Option<Version> {
        self.cuda
    }
}

/// Everything there is to say about an image on these kinds of GPUs. Without one the driver alone is judged.
#[must_use]
pub fn judge<'a>(image: &Image<'a>, driver: &Driver, kinds: &Products) -> Vec<Finding<'a>> {
    let mut out = Findings { found: Vec::new(), kind: 0 };
    if let Some(variable) = &image.disabled {
        out.written(Verdict::Supported, variable, variable.value);
    }
    loop {
        let (model, capability) = kinds.0.get(out.kind).map_or(("", ""), |(model, capability)| (model, capability));
        on(image, driver, model, Version::parse(capability), &mut out);
        out.kind += 1;
        if out.kind >= kinds.0.len() {
            return out.found;
        }
    }
}

struct Findings<'a> {
    found: Vec<Finding<'a>>,
    /// The kind of GPU that is looked at.
    kind: usize,
}

impl<'a> Findings<'a> {
    fn written(&mut self, verdict: Verdict, variable: &Variable<'a>, written: &'a str) {
        self.add(verdict, variable, written, (Version(0), Version(0), false));
    }

    /// Several kinds of GPUs lead to the same. The last are the toolkit, the bound, and whether that is an upper one.
    #[inline(never)]
    fn add(
        &mut self,
        verdict: Verdict,
        variable: &Variable<'a>,
        written: &'a str,
        (toolkit, bound, below): (Version, Version, bool),
    ) {
        let &Variable { index, name, .. } = variable;
        let same = |known: &Finding<'_>| known.verdict == verdict && known.index == index && known.bound == bound;
        if !self.found.iter().any(same) {
            let kind = self.kind;
            self.found.push(Finding { verdict, variable: name, index, written, toolkit, bound, below, kind });
        }
    }
}

/// An image on one kind of GPU; the model is empty when not known.
fn on<'a>(image: &Image<'a>, driver: &Driver, model: &str, capability: Option<Version>, out: &mut Findings<'a>) {
    let brand = (!model.is_empty()).then(|| toolkits::brand(model));
    let facts = Facts { driver: driver.version, cuda: driver.cuda, arch: capability, brand };
    let named = image.version.and_then(|variable| Some((Version::parse(variable.value)?.short(), variable)));
    // What the image was built for: what it says itself, or more, where a requirement is not met with less.
    let mut toolkit = named;
    for variable in &image.requirements {
        let outcome = require::judge(variable.value, &facts);
        if let Some(text) = outcome.malformed {
            out.written(Verdict::Supported, variable, text);
        }
        let newer = driver.cuda.is_some_and(|serves| outcome.least > Some(serves));
        if let Some(least) = outcome.least
            && (if outcome.holds { named.is_none() && !newer } else { newer })
            && toolkit.is_none_or(|(version, _)| least > version)
        {
            toolkit = Some((least.short(), *variable));
        }
        // Where CUDA alone is too old, what that means follows from the version.
        if let Some(text) = outcome.failing
            && !(outcome.holds || outcome.but_for_cuda && newer)
        {
            out.written(Verdict::Unmet, variable, text);
        }
    }
    let Some((version, variable)) = toolkit else { return };
    if let (Some(driver), Some(serves)) = (driver.version, driver.cuda)
        && version > serves
    {
        let verdict = if toolkits::minor_compatible(version.major()).is_some_and(|least| driver >= least) {
            Verdict::MinorVersion
        } else if brand == Some(toolkits::DATA_CENTRE) {
            // Libraries of the image instead of the node's: NVIDIA's driver lets data-centre products alone use them.
            Verdict::ForwardCompatibility
        } else {
            Verdict::NeedsDriver
        };
        out.add(verdict, &variable, "", (version, version, false));
    }
    if let Some((verdict, bound, below)) = capability.and_then(|capability| toolkits::target(version, capability)) {
        out.add(verdict, &variable, "", (version, bound, below));
    }
}

/// The beginning of a text that may be long.
fn short(text: &str) -> &str {
    let mut end = text.len().min(TOLD);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// What `[policy] cuda` says about images that will not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// A note in the audit.
    #[default]
    Warn,
    /// No container.
    Refuse,
    /// Nobody looks.
    Off,
}

word!(Policy { Warn = "warn", Refuse = "refuse", Off = "off" });

#[cfg(test)]
mod tests;
