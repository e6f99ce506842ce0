//! Our own documents: what is accepted is written again as something accepted and equal, and had no field of others.

use std::fmt::Debug;

use contract::Contract;
use contract::inventory::{Inventory, LowLevel};
use contract::read::{self, FromJson};
use ledger::Lease;
use serde::Serialize;
use serde_json::Value;

/// Holds the readers to it.
pub fn run(data: &[u8]) {
    strict::<Contract>(data);
    strict::<Inventory>(data);
    // Leases tolerate newer fields, and so does what a low-level runtime was seen to be.
    written_again::<LowLevel>(data);
    written_again::<Lease>(data);
}

fn strict<T: FromJson + Serialize + PartialEq + Debug>(data: &[u8]) {
    let Some(written) = written_again::<T>(data) else { return };
    let (Ok(original), Ok(written)) = (serde_json::from_slice(data), serde_json::from_slice(&written)) else {
        panic!("accepted, and another reader refuses it")
    };
    assert!(covers(&written, &original), "a field was not read: {original} became {written}");
}

fn written_again<T: FromJson + Serialize + PartialEq + Debug>(data: &[u8]) -> Option<Vec<u8>> {
    let document = read::document::<T>(data).ok()?;
    let Ok(written) = serde_json::to_vec(&document) else { panic!("cannot be written: {document:?}") };
    match read::document::<T>(&written) {
        Ok(again) => assert_eq!(again, document, "written and read again"),
        Err(error) => panic!("what was written is refused: {error}"),
    }
    Some(written)
}

/// Whether all that the original says stands in what was written. `null` says nothing.
fn covers(written: &Value, original: &Value) -> bool {
    match (written, original) {
        (Value::Object(written), Value::Object(original)) => {
            let read = |key: &str, value| written.get(key).is_some_and(|w| key == "low_level" || covers(w, value));
            original.iter().filter(|(_, value)| !value.is_null()).all(|(key, value)| read(key, value))
        }
        (Value::Array(written), Value::Array(original)) => {
            written.len() == original.len() && written.iter().zip(original).all(|(w, o)| covers(w, o))
        }
        // `-0` is a whole number to us, and 0.
        (written, original) => {
            written == original || (written.as_i64() == Some(0) && original.as_f64().is_some_and(|zero| zero == 0.0))
        }
    }
}
