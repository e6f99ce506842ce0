//! `quilt-gpu version`.

use crate::cli::Context;
use crate::exit::{Exit, Failure};

pub(crate) fn run(mut context: Context<'_>) -> Result<Exit, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    if context.json()? {
        context.document(&serde_json::json!({ "version": version, "inventory_schema": contract::inventory::SCHEMA, "contract_schema": contract::SCHEMA }))?;
    } else {
        writeln!(context.out, "quilt-gpu {version}")?;
    }
    Ok(Exit::Done)
}
