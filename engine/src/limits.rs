//! `update`, and what the limits are used up to: `events`.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use libcgroups::common::{CgroupManager, ControllerOpt};
use libcgroups::stats::{BlkioDeviceStat, MemoryData, Stats};
use libcontainer::container::ContainerStatus;
use libcontainer::oci_spec::runtime::LinuxResources;
use serde_json::{Map, Value, json};

use crate::args::{Call, Flags};
use crate::container::Known;
use crate::create::refuse;
use crate::group;
use crate::life::print;
use crate::oom::Killed;
use crate::report::chain;

/// Flags of `update`, and where in resources they go; those of bytes may have a unit.
const FLAGS: [(&str, &str, &str, bool); 14] = [
    ("blkio-weight", "blockIO", "weight", false),
    ("cpu-period", "cpu", "period", false),
    ("cpu-quota", "cpu", "quota", false),
    ("cpu-burst", "cpu", "burst", false),
    ("cpu-share", "cpu", "shares", false),
    ("cpu-rt-period", "cpu", "realtimePeriod", false),
    ("cpu-rt-runtime", "cpu", "realtimeRuntime", false),
    ("cpu-idle", "cpu", "idle", false),
    ("kernel-memory-tcp", "memory", "kernelTCP", true),
    ("memory", "memory", "limit", true),
    ("memory-reservation", "memory", "reservation", true),
    ("memory-swap", "memory", "swap", true),
    ("pids-limit", "pids", "limit", false),
    ("kernel-memory", "memory", "kernel", true),
];

/// `update`. The device list is not touched, whatever it says: what a container may open is decided when it is made.
///
/// # Errors
/// What cannot be done, or was refused by the kernel.
pub(crate) fn update(call: &Call, root: &Path) -> Result<i32, String> {
    let known = Known::load(root, call.id())?;
    let mut resources = match call.flags.value("resources") {
        Some(path) => read(path)?,
        None => Value::Object(from_flags(&call.flags)?),
    };
    if let Some(map) = resources.as_object_mut() {
        map.remove("devices");
    }
    for flag in ["l3-cache-schema", "mem-bw-schema"] {
        if call.flags.value(flag).is_some() {
            return Err(format!("--{flag}: libcontainer changes no Intel RDT group"));
        }
    }
    refuse(&json!({ "linux": { "resources": &resources } }), group::is_v2()?)?;
    let resources: LinuxResources =
        serde_json::from_value(resources).map_err(|cause| format!("cannot read the resources: {cause}"))?;
    let limits =
        ControllerOpt { resources: &resources, disable_oom_killer: false, oom_score_adj: None, freezer_state: None };
    known
        .groups()?
        .apply(&limits)
        .map(|()| 0)
        .map_err(|cause| format!("cannot update {}: {}", call.id(), chain(&cause)))
}

fn read(path: &str) -> Result<Value, String> {
    let failed = |cause: &dyn std::fmt::Display| format!("cannot read the resources in {path}: {cause}");
    let mut bytes = Vec::new();
    if path == "-" {
        std::io::stdin().read_to_end(&mut bytes).map_err(|cause| failed(&cause))?;
    } else {
        bytes = std::fs::read(path).map_err(|cause| failed(&cause))?;
    }
    serde_json::from_slice(&bytes).map_err(|cause| failed(&cause))
}

fn from_flags(flags: &Flags) -> Result<Map<String, Value>, String> {
    let mut resources = Map::new();
    let mut put = |group: &str, key: &str, value: Value| {
        if let Some(map) = resources.entry(group).or_insert_with(|| json!({})).as_object_mut() {
            map.insert(key.to_owned(), value);
        }
    };
    for (flag, group, key, bytes) in FLAGS {
        let Some(text) = flags.value(flag) else { continue };
        let number = if bytes { in_bytes(text) } else { text.parse::<i64>().ok() };
        put(group, key, number.ok_or_else(|| format!("--{flag} wants a number, not {text:?}"))?.into());
    }
    for (flag, key) in [("cpuset-cpus", "cpus"), ("cpuset-mems", "mems")] {
        if let Some(text) = flags.value(flag) {
            put("cpu", key, text.into());
        }
    }
    Ok(resources)
}

/// `512`, `-1`, `64M`, `1.5g`, `2GiB`.
fn in_bytes(text: &str) -> Option<i64> {
    let lower = text.trim().to_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = lower.get(digits.len()..)?.trim_end_matches("ib").trim_end_matches('b');
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|known| *known == unit)?;
    let factor = 1_i64 << (10 * power);
    match digits.trim().parse::<i64>() {
        Ok(number) => number.checked_mul(factor),
        Err(_) => digits.trim().parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| (n * factor as f64) as i64),
    }
}

/// How soon it is told that a process was killed for want of memory.
const ROUND: Duration = Duration::from_millis(100);

/// `events`: what a container uses, once with `--stats`, otherwise again and again until it is gone, and when the kernel kills
/// one of its processes for want of memory.
///
/// # Errors
/// Why it cannot be told.
pub(crate) fn events(call: &Call, root: &Path) -> Result<i32, String> {
    let interval = call.flags.value("interval").unwrap_or("5s");
    let interval = seconds(interval).ok_or_else(|| format!("--interval wants a time above 0, not {interval:?}"))?;
    let mut known = Known::load(root, call.id())?;
    if known.inner.status() == ContainerStatus::Stopped {
        return Err(format!("container with id {} is not running", call.id()));
    }
    let mut killed = None;
    loop {
        let stats = known
            .groups()
            .and_then(|groups| groups.stats().map_err(|cause| format!("cannot read statistics: {}", chain(&cause))));
        let stats = match stats {
            // It ended while we looked.
            Err(_) if running(root, call.id()).is_none() => return Ok(0),
            stats => stats?,
        };
        // In runc's order: who reads lines looks for how they begin.
        print(&format!("{{\"type\":\"stats\",\"id\":{},\"data\":{}}}", json!(call.id()), shown(&stats)))?;
        if call.flags.is("stats") {
            return Ok(0);
        }
        killed = killed.or_else(|| known.pid().and_then(Killed::in_group_of));
        let until = Instant::now() + interval;
        while Instant::now() < until {
            std::thread::sleep(ROUND.min(interval));
            if killed.as_mut().is_some_and(Killed::more) {
                print(&format!("{{\"type\":\"oom\",\"id\":{}}}", json!(call.id())))?;
            }
        }
        let Some(still) = running(root, call.id()) else { return Ok(0) };
        known = still;
    }
}

/// A container that has not ended, nor been deleted.
fn running(root: &Path, id: &str) -> Option<Known> {
    Known::load(root, id).ok().filter(|known| known.inner.status() != ContainerStatus::Stopped)
}

/// Go's way to write a time, in whole units.
fn seconds(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let number: u64 = number.parse().ok()?;
    let time = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60)?),
        _ => return None,
    };
    (!time.is_zero()).then_some(time)
}

/// In the fields of runc's `events`.
fn shown(stats: &Stats) -> Value {
    let memory = |data: &MemoryData| json!({ "limit": data.limit, "usage": data.usage, "max": data.max_usage, "failcnt": data.fail_count });
    let io = |list: &[BlkioDeviceStat]| {
        let row = |one: &BlkioDeviceStat| json!({ "major": one.major, "minor": one.minor, "op": one.op_type, "value": one.value });
        list.iter().map(row).collect::<Vec<_>>()
    };
    let (cpu, blkio) = (&stats.cpu, &stats.blkio);
    let huge = stats.hugetlb.iter().map(|(size, huge)| {
        (size.clone(), json!({ "usage": huge.usage, "max": huge.max_usage, "failcnt": huge.fail_count }))
    });
    json!({
        "cpu": {
            "usage": { "total": cpu.usage.usage_total, "percpu": cpu.usage.per_core_usage_total,
                "kernel": cpu.usage.usage_kernel, "user": cpu.usage.usage_user },
            "throttling": { "periods": cpu.throttling.periods, "throttledPeriods": cpu.throttling.throttled_periods,
                "throttledTime": cpu.throttling.throttled_time },
        },
        "memory": { "cache": stats.memory.cache, "usage": memory(&stats.memory.memory), "swap": memory(&stats.memory.memswap),
            "kernel": memory(&stats.memory.kernel), "kernelTCP": memory(&stats.memory.kernel_tcp), "raw": stats.memory.stats },
        "pids": { "current": stats.pids.current, "limit": stats.pids.limit },
        "blkio": { "ioServiceBytesRecursive": io(&blkio.service_bytes), "ioServicedRecursive": io(&blkio.serviced),
            "ioQueueRecursive": io(&blkio.queued), "ioServiceTimeRecursive": io(&blkio.service_time),
            "ioWaitTimeRecursive": io(&blkio.wait_time), "ioMergedRecursive": io(&blkio.merged),
            "ioTimeRecursive": io(&blkio.time), "sectorsRecursive": io(&blkio.sectors) },
        "hugetlb": huge.collect::<Map<_, _>>(),
        "intel_rdt": {},
        "network_interfaces": null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_have_units() {
        for (text, bytes) in
            [("512", 512), ("-1", -1), ("64M", 64 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30), ("1kb", 1024)]
        {
            assert_eq!(in_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "x", "1x", "M"] {
            assert_eq!(in_bytes(text), None, "{text}");
        }
        assert_eq!(seconds("100ms"), Some(Duration::from_millis(100)));
        for text in ["0s", "5", "-1s", "1h"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn flags_and_files_say_the_same() {
        let call = |line: &str| crate::args::parse(line.split(' ').map(str::to_owned)).map_err(|(why, _)| why).unwrap();
        let made = from_flags(&call("update --memory 64M --pids-limit 20 --cpuset-cpus 0-1 id").flags).unwrap();
        assert_eq!(
            Value::Object(made),
            json!({"memory": {"limit": 64 << 20}, "pids": {"limit": 20}, "cpu": {"cpus": "0-1"}})
        );
        assert!(from_flags(&call("update --pids-limit x id").flags).unwrap_err().contains("--pids-limit"));
    }
}
