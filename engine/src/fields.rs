//! What libcontainer's types read of a spec, field by field, against the list of verdicts that the guard keeps: a new field has
//! to be thought of before it is let through. serde tells a type's fields to whoever plays the document.

use std::collections::BTreeSet;

use libcontainer::oci_spec::runtime::Spec;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

/// A document that has every field that it is asked for, and notes where.
struct Asked<'s> {
    at: String,
    seen: &'s mut BTreeSet<String>,
}

impl Asked<'_> {
    fn leaf(self) {
        self.seen.insert(self.at);
    }

    fn below(&mut self, name: &str) -> Asked<'_> {
        let dot = if self.at.is_empty() || !name.chars().all(char::is_alphanumeric) { "" } else { "." };
        Asked { at: format!("{}{dot}{name}", self.at), seen: self.seen }
    }
}

macro_rules! leaves {
    ($($name:ident $visit:ident $value:expr,)*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.leaf();
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = Error;

    leaves! {
        deserialize_bool visit_bool true,
        deserialize_i8 visit_i8 1,
        deserialize_i16 visit_i16 1,
        deserialize_i32 visit_i32 1,
        deserialize_i64 visit_i64 1,
        deserialize_u8 visit_u8 1,
        deserialize_u16 visit_u16 1,
        deserialize_u32 visit_u32 1,
        deserialize_u64 visit_u64 1,
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // Of the texts that are read further, these alone are no numbers.
        let text = if self.at.contains("capabilities") { "CAP_CHOWN" } else { "1" };
        self.leaf();
        visitor.visit_str(text)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Fields { of: self, left: vec!["[]"], now: "" })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { of: self, left: vec!["{}"], now: "" })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { of: self, left: fields.to_vec(), now: "" })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.leaf();
        visitor.visit_enum(Variant(variants.first().copied().unwrap_or_default()))
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

/// What is left to be told of a list (one thing), a map (one key) or a struct (each field).
struct Fields<'s> {
    of: Asked<'s>,
    left: Vec<&'static str>,
    now: &'static str,
}

impl<'de> SeqAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.left.pop().map(|name| seed.deserialize(self.of.below(name))).transpose()
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.left.pop() else { return Ok(None) };
        self.now = name;
        let key: StrDeserializer<'_, Error> = name.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.of.below(self.now))
    }
}

/// One variant without content.
struct Variant(&'static str);

impl<'de> EnumAccess<'de> for Variant {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Error> {
        let name: StrDeserializer<'_, Error> = self.0.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Error> {
        Err(serde::de::Error::custom("not of a spec"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(serde::de::Error::custom("not of a spec"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Error> {
        Err(serde::de::Error::custom("not of a spec"))
    }
}

#[test]
fn every_field_that_is_read_has_a_verdict() {
    let mut seen = BTreeSet::new();
    Spec::deserialize(Asked { at: String::new(), seen: &mut seen }).unwrap();
    assert!(seen.len() > 150 && seen.contains("linux.resources.hugepageLimits[].pageSize"), "{}: {seen:?}", seen.len());
    let list = include_str!("../../crates/guard/tests/fields.txt");
    let known: BTreeSet<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    // Of other systems a whole is enough.
    let covered = |path: &String| {
        known.contains(path.as_str()) || path.split(['.', '[', '{']).next().is_some_and(|first| known.contains(first))
    };
    let unknown: Vec<&String> = seen.iter().filter(|path| !covered(path)).collect();
    assert!(unknown.is_empty(), "without a verdict in crates/guard/tests/fields.txt: {unknown:?}");
}
