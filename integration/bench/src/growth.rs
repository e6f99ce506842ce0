//! How the cost of a create grows with what a node has. Counts, so that a line is a line.

use integration::{Result, Spec};
use serde_json::json;

use crate::contests::cut;
use crate::count::{Counts, instructions, traced, traced_as_it_is};
use crate::plot::Line;
use crate::scene::{Node, Scene, Verb};

/// What grows, and what a create took at each size: instructions, and system calls.
pub struct Growth {
    /// File name of the plot, title, and what grows.
    pub words: [&'static str; 3],
    /// Instructions.
    pub instructions: Vec<Line>,
    /// System calls.
    pub calls: Vec<Line>,
}

fn counted(node: &Node, spec: &Spec) -> Result<Counts> {
    of(&node.scene("growing", Verb::Create, spec, None)?)
}

fn of(scene: &Scene<'_>) -> Result<Counts> {
    let calls = calls(&traced(scene)?);
    Ok(Counts { calls, failed: 0, instructions: instructions(scene, "/dev/null")? })
}

fn calls(trace: &str) -> u64 {
    trace.lines().filter(|line| line.contains('(') && !line.starts_with("---")).count() as u64
}

fn grown(name: &str, points: &[(f64, Counts)]) -> (Line, Line) {
    let line = |number: &dyn Fn(&Counts) -> u64| {
        (name.to_owned(), points.iter().map(|(at, counts)| (*at, number(counts) as f64)).collect())
    };
    (line(&|counts| counts.instructions), line(&|counts| counts.calls))
}

fn asks(count: u64) -> Spec {
    Spec::new().env("QUILT_GPU_COUNT", &count.to_string())
}

/// The trace of a create on a node of 112 MIG instances, of which so many, or all others, are in use.
///
/// # Errors
/// The node cannot be made, or a create fails.
pub fn traced_beside(many: usize) -> Result<String> {
    let node = Node::new(|host| host.gpus(16))?;
    let mut instances = cut(&node, 7)?;
    let free = Spec::new().env("QUILT_GPU_IDS", &instances.pop().unwrap_or_default());
    node.hold(instances.into_iter().take(many), 0)?;
    traced_as_it_is(&node.scene("growing", Verb::Create, &free, None)?)
}

/// GPUs of the node, MIG instances on it, mounts of the container, contracts in force.
///
/// # Errors
/// A node cannot be made, or a create fails.
pub fn all() -> Result<Vec<Growth>> {
    let (mut one, mut whole) = (Vec::new(), Vec::new());
    for gpus in [1_u32, 2, 4, 8, 16] {
        let node = Node::new(|host| host.gpus(gpus.into()))?;
        one.push((f64::from(gpus), counted(&node, &asks(1))?));
        whole.push((f64::from(gpus), counted(&node, &asks(gpus.into()))?));
    }
    let lines = [grown("asks for 1", &one), grown("asks for all", &whole)];
    let gpus = growth(["gpus", "Create on a node with more GPUs", "GPUs of the node"], lines);

    let node = Node::new(|host| host.gpus(16))?;
    let (mut points, mut made) = (Vec::new(), 0_u32);
    for wanted in [0, 14, 28, 56, 105] {
        while made < wanted {
            // The first GPU in order of address stays whole: it is the one that is asked for.
            let gpu = &node.host.gpus[1 + made as usize / 7];
            node.host.make_instance(gpu.minor, u64::from(made % 7) + 7)?;
            made += 1;
        }
        node.refresh()?;
        let whole = Spec::new().env("QUILT_GPU_IDS", &node.host.gpus[0].name());
        points.push((f64::from(wanted), counted(&node, &whole)?));
    }
    let words = ["mig", "Create on a node of 16 GPUs with MIG instances", "MIG instances"];
    let mig = growth(words, [grown("asks for a whole GPU", &points)]);

    let node = Node::new(|host| host.gpus(1))?;
    let mut points = Vec::new();
    for mounts in [0_u32, 100, 1000, 2000, 4000] {
        let spec = (0..mounts).fold(asks(1), |spec, n| {
            spec.mount(json!({"destination": format!("/scratch/{n}"), "type": "tmpfs", "source": "tmpfs"}))
        });
        points.push((f64::from(mounts), counted(&node, &spec)?));
    }
    let words = ["mounts", "Create of a container with more mounts", "mounts of the container"];
    let mounts = growth(words, [grown("asks for 1", &points)]);

    let node = Node::new(|host| host.gpus(16))?;
    let mut instances = cut(&node, 7)?;
    let free = Spec::new().env("QUILT_GPU_IDS", &instances.pop().unwrap_or_default());
    let (mut points, mut held) = (Vec::new(), 0);
    for wanted in [0, 28, 56, 84, 111] {
        held += node.hold(instances.drain(..wanted - held), held)?;
        points.push((wanted as f64, of(&node.scene("growing", Verb::Create, &free, None)?.beside_others())?));
    }
    let words = ["contracts", "Create on a node of 112 MIG instances in use", "contracts in force"];
    let contracts = growth(words, [grown("asks for an instance", &points)]);
    Ok(vec![gpus, mig, mounts, contracts])
}

fn growth<const N: usize>(words: [&'static str; 3], lines: [(Line, Line); N]) -> Growth {
    let (instructions, calls) = lines.into_iter().unzip();
    Growth { words, instructions, calls }
}
