//! The use of GPUs as a table and as metrics. Pure.

use std::fmt::Write as _;

use super::{Gpu, User};
use crate::table;

/// For people: a line for each GPU, and one for each process on it.
pub(crate) fn text(gpus: &[Gpu]) -> String {
    if gpus.is_empty() {
        return "the driver tells of no GPU\n".to_owned();
    }
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let mut rows: Vec<[String; 7]> = Vec::new();
    for gpu in gpus {
        let total = gpu.memory_total_mb.map(|total| format!("/{total}")).unwrap_or_default();
        let memory = number(gpu.memory_used_mb) + &total;
        let busy = gpu.busy_percent.map(|busy| format!("{busy}%")).unwrap_or_default();
        let holders: Vec<&str> = gpu.holders.iter().map(|holder| table::short(holder)).collect();
        rows.push([gpu.name.clone(), busy, memory, String::new(), String::new(), holders.join(","), String::new()]);
        for user in &gpu.processes {
            let command = user.command.clone().unwrap_or_default();
            let owner = user.owner.clone().unwrap_or_default();
            let memory = number(user.memory_mb);
            rows.push([String::new(), String::new(), memory, user.pid.to_string(), command, who(user), owner]);
        }
    }
    table::render(["GPU", "BUSY", "MIB", "PID", "COMMAND", "CONTAINER", "OWNER"], &rows)
}

fn who(user: &User) -> String {
    let id = user.container.as_deref().map(table::short);
    let name = user.name.as_deref().or(id).unwrap_or("(in no container)");
    if user.leased { name.to_owned() } else { format!("{name}, without a lease") }
}

/// For Prometheus.
pub(crate) fn metrics(gpus: &[Gpu]) -> String {
    let mut out = String::new();
    let mut metric = |name: &str, help: &str, samples: Vec<(String, u64)>| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in samples {
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        }
    };
    let gpu = |value: &dyn Fn(&Gpu) -> Option<u64>| -> Vec<(String, u64)> {
        gpus.iter().filter_map(|gpu| Some((of_gpu(gpu), value(gpu)?))).collect()
    };
    metric(
        "quilt_gpu_busy_percent",
        "Share of time that something ran on this GPU",
        gpu(&|gpu| gpu.busy_percent.map(u64::from)),
    );
    metric(
        "quilt_gpu_memory_used_bytes",
        "Memory of this GPU in use",
        gpu(&|gpu| gpu.memory_used_mb.map(|mb| mb << 20)),
    );
    let users = gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |user| (gpu, user)));
    let memory =
        users.map(|(gpu, user)| (format!("{},{}", of_gpu(gpu), of_user(user)), user.memory_mb.unwrap_or(0) << 20));
    metric("quilt_gpu_process_memory_bytes", "GPU memory of a process, by its container", memory.collect());
    out
}

fn of_gpu(gpu: &Gpu) -> String {
    labels(&[("pci", &gpu.pci), ("gpu", &gpu.name), ("uuid", gpu.uuid.as_deref().unwrap_or_default())])
}

fn of_user(user: &User) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let instance = user.gi.zip(user.ci).map(|(gi, ci)| format!("{gi}/{ci}"));
    labels(&[
        ("pid", &user.pid.to_string()),
        ("command", &text(&user.command)),
        ("container", &text(&user.container)),
        ("name", &text(&user.name)),
        ("owner", &text(&user.owner)),
        ("instance", &text(&instance)),
        ("leased", if user.leased { "true" } else { "false" }),
    ])
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let quoted = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", quoted(value))).collect::<Vec<_>>().join(",")
}
