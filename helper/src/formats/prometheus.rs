//! The inventory as Prometheus reads it, for a node exporter's textfile folder. States and products; never who holds what.

use std::fmt::Write as _;

use contract::inventory::Inventory;

use super::view::{Lease, View};

/// Labels and value.
type Sample<'a> = (Vec<(&'a str, String)>, u64);
/// A metric: its name, what it says, and its samples.
type Metric<'a> = (&'a str, &'a str, Vec<Sample<'a>>);

/// All metrics of a node.
pub(crate) fn text(inventory: &Inventory, views: &[View<'_>]) -> String {
    let known = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let driver = vec![
        ("version", known(inventory.facts.driver_version.as_deref())),
        ("cuda", known(inventory.cuda_version.as_deref())),
    ];
    let findings =
        inventory.findings.iter().map(|finding| (vec![("code", finding.code.clone())], finding.stops.into()));
    let gpu = |value: &dyn Fn(&View<'_>) -> Option<u64>| {
        views.iter().filter_map(|view| Some((vec![("pci", view.pci.to_owned())], value(view)?))).collect()
    };
    let part = |value: &dyn Fn(Lease, &str) -> bool| {
        let parts = views.iter().flat_map(|view| view.partitions.iter().map(move |part| (view, part)));
        let labels = |(view, part): (&View<'_>, &super::view::Part<'_>)| {
            let labels =
                vec![("pci", view.pci.to_owned()), ("id", part.id.clone()), ("profile", part.profile.to_owned())];
            (labels, value(part.lease, part.health).into())
        };
        parts.map(labels).collect()
    };
    let info = |view: &View<'_>| {
        let labels = vec![
            ("pci", view.pci.to_owned()),
            ("id", view.id.clone()),
            ("uuid", known(view.uuid)),
            ("model", known(view.model)),
            ("kind", view.kind.clone()),
            ("kernel_driver", known(view.kernel_driver)),
        ];
        (labels, 1)
    };
    let state = |view: &View<'_>| (vec![("pci", view.pci.to_owned()), ("state", view.health.to_owned())], 1);
    let metrics: [Metric<'_>; 14] = [
        ("quilt_gpu_driver_info", "The loaded NVIDIA driver and the CUDA it serves", vec![(driver, 1)]),
        ("quilt_gpu_finding", "What is wrong with this node; 1 stops containers with GPUs", dedup(findings.collect())),
        ("quilt_gpu_info", "A GPU by its names", views.iter().map(info).collect()),
        (
            "quilt_gpu_usable",
            "Whether a container could get this GPU or parts of it",
            gpu(&|view| Some(usable(view).into())),
        ),
        ("quilt_gpu_leased", "Whether somebody has this GPU", gpu(&|view| Some((view.lease == Lease::Leased).into()))),
        ("quilt_gpu_state", "What keeps a GPU from being granted, or ok", views.iter().map(state).collect()),
        ("quilt_gpu_memory_bytes", "Memory of this GPU", gpu(&|view| view.memory_mb.map(|mb| mb << 20))),
        (
            "quilt_gpu_memory_used_bytes",
            "Memory of this GPU that is in use",
            gpu(&|view| view.metrics.memory_used_mb.map(|mb| mb << 20)),
        ),
        (
            "quilt_gpu_utilization_percent",
            "How much of the last second this GPU computed",
            gpu(&|view| view.metrics.utilization_percent.map(Into::into)),
        ),
        (
            "quilt_gpu_temperature_celsius",
            "Temperature of this GPU",
            gpu(&|view| view.metrics.temperature_c.map(Into::into)),
        ),
        ("quilt_gpu_power_milliwatts", "What this GPU draws", gpu(&|view| view.metrics.power_mw.map(Into::into))),
        (
            "quilt_gpu_mig_enabled",
            "Whether this GPU is cut into instances",
            gpu(&|view| Some(view.mig?.enabled.into())),
        ),
        (
            "quilt_gpu_partition_usable",
            "Whether a container could get this instance",
            part(&|_, health| health == "ok"),
        ),
        ("quilt_gpu_partition_leased", "Whether somebody has this instance", part(&|lease, _| lease == Lease::Leased)),
    ];
    metrics.iter().map(one).collect()
}

fn usable(view: &View<'_>) -> bool {
    view.health == "ok" && view.why.is_none()
}

/// A series stands once: of findings with one code the worst counts.
fn dedup(samples: Vec<Sample<'_>>) -> Vec<Sample<'_>> {
    let mut out: Vec<Sample<'_>> = Vec::new();
    for (labels, value) in samples {
        match out.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, most)) => *most = value.max(*most),
            None => out.push((labels, value)),
        }
    }
    out
}

fn one((name, help, samples): &Metric<'_>) -> String {
    let mut out = String::new();
    if samples.is_empty() {
        return out;
    }
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (labels, value) in samples {
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(out, "{name}{{{}}} {value}", labels.join(","));
    }
    out
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use contract::gpu::{Gpu, State, Unavailable};
    use contract::inventory::{Facts, Finding};

    use super::super::view::views;
    use super::*;

    #[test]
    fn every_series_stands_once_and_values_are_quoted() {
        let finding = |stops| Finding { code: "no-char-links".into(), stops, message: "m".into() };
        let inventory = Inventory {
            facts: Facts { driver_version: Some("550.54.15".into()), ..Facts::default() },
            cuda_version: Some("12.4".into()),
            gpus: vec![
                Gpu {
                    pci: "0000:01:00.0".into(),
                    minor: Some(0),
                    model: Some("a\"b\\c\nd".into()),
                    memory_mb: Some(3),
                    ..Gpu::default()
                },
                Gpu {
                    pci: "0000:02:00.0".into(),
                    unavailable: Some(Unavailable::new(State::Lost, "w")),
                    ..Gpu::default()
                },
            ],
            findings: vec![finding(false), finding(true)],
            ..Inventory::default()
        };
        let text = text(&inventory, &views(&inventory, &|id| id == "0000:01:00.0"));
        for line in [
            r#"quilt_gpu_driver_info{version="550.54.15",cuda="12.4"} 1"#,
            r#"quilt_gpu_finding{code="no-char-links"} 1"#,
            r#"quilt_gpu_info{pci="0000:01:00.0",id="nvidia0",uuid="",model="a\"b\\c\nd",kind="",kernel_driver=""} 1"#,
            r#"quilt_gpu_usable{pci="0000:01:00.0"} 1"#,
            r#"quilt_gpu_usable{pci="0000:02:00.0"} 0"#,
            r#"quilt_gpu_leased{pci="0000:01:00.0"} 1"#,
            r#"quilt_gpu_leased{pci="0000:02:00.0"} 0"#,
            r#"quilt_gpu_state{pci="0000:02:00.0",state="gpu-lost"} 1"#,
            r#"quilt_gpu_memory_bytes{pci="0000:01:00.0"} 3145728"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let mut series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        series.iter_mut().for_each(|line| *line = line.rsplit_once(' ').unwrap().0);
        let all = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), all, "{text}");
        assert!(!text.contains("partition") && !text.contains("mig_enabled"), "nothing is said of what is not there");
    }
}
