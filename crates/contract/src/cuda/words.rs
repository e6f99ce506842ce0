//! Findings in full sentences, for the operator's command line. The runtime only tells the condition and the verdict: these
//! sentences would be a third of what it has for CUDA.

use super::{Driver, Finding, Verdict, toolkits};
use crate::Products;

impl Finding<'_> {
    /// What is true, and what would work; the latter is empty for what is only worth knowing.
    #[must_use]
    pub fn words(&self, driver: &Driver, kinds: &Products) -> (String, String) {
        let known = |version: Option<super::Version>| version.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
        let (version, serves) = (known(driver.version), known(driver.cuda));
        let gpu = kinds.0.get(self.kind).map_or_else(
            || "a GPU".to_owned(),
            |(model, capability)| match (model.as_str(), capability.as_str()) {
                ("", "") => "a GPU that is not known".to_owned(),
                (model, "") => model.to_owned(),
                ("", capability) => format!("a GPU of compute capability {capability}"),
                (model, capability) => format!("{model} (compute capability {capability})"),
            },
        );
        let Self { verdict, toolkit, bound, .. } = self;
        match verdict {
            Verdict::Supported if self.written.is_empty() => {
                let message =
                    format!("CUDA {toolkit} is older than {gpu}, which runs what was made for its older relatives");
                (message, String::new())
            }
            Verdict::Supported if self.variable == super::DISABLE => {
                ("the image asks that its requirements refuse nothing".to_owned(), String::new())
            }
            Verdict::Supported => {
                (format!("{} is no condition, and counts for nothing", self.condition()), String::new())
            }
            Verdict::Architecture if self.below => (
                format!("CUDA {toolkit} no longer makes code for {gpu}"),
                format!("use an image for CUDA {bound} or older"),
            ),
            Verdict::Architecture => (
                format!("CUDA {toolkit} makes no code for {gpu}: only programs that carry PTX run"),
                format!("use an image for CUDA {bound} or newer"),
            ),
            Verdict::Unmet => {
                let has = format!("driver {version}, CUDA {serves}, {gpu}");
                let help = "use an image for this node, or a node for this image".to_owned();
                (format!("the image requires {}; this node has {has}", self.condition()), help)
            }
            Verdict::MinorVersion | Verdict::ForwardCompatibility | Verdict::NeedsDriver => {
                let message = format!("the image is for CUDA {toolkit}, and driver {version} for CUDA {serves}");
                served(*verdict, message, *toolkit, &serves)
            }
        }
    }
}

/// A version of CUDA that the driver is older than.
fn served(verdict: Verdict, message: String, wanted: super::Version, serves: &str) -> (String, String) {
    let least = toolkits::minor_compatible(wanted.major());
    if verdict == Verdict::MinorVersion {
        let how = "it runs by minor version compatibility, features of newer drivers are missing";
        return (format!("{message}: {how}"), String::new());
    }
    let mut help = match toolkits::made_for(wanted) {
        Some(made_for) => format!("install driver {made_for} or newer on the node"),
        None => format!("install a driver for CUDA {wanted} on the node"),
    };
    if let Some(least) = least {
        help.push_str(&format!(" ({least} runs it without newer features)"));
    }
    help.push_str(&format!(", or use an image for CUDA {serves}"));
    if verdict == Verdict::ForwardCompatibility {
        help.push_str("; with compatibility libraries (cuda-compat) in its library path the image runs as it is");
    }
    (message, help)
}
