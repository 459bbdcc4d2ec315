//! Whether JSON is what a schema says: for records that come as JSON, where a body would be decoded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use super::shape::{Field, MapKey, Misfit, Shape, Variant, range_of};

/// A value is repeated in a sentence up to so many characters.
const QUOTED_MAX: usize = 40;

/// Whether the value is one of this shape, and if not, why.
pub(super) fn check(shape: &Shape, value: &Value) -> Result<(), String> {
    fits(shape, value).map_err(Misfit::into_sentence)
}

fn fits(shape: &Shape, value: &Value) -> Result<(), Misfit> {
    match shape {
        Shape::Bool => expect(value.is_boolean(), "true or false", value),
        Shape::Unsigned(bits) => whole(value, *bits, false),
        Shape::Signed(bits) => whole(value, *bits, true),
        // Null is what serde_json writes for NaN.
        Shape::F32 => {
            let is_in_range = value.as_f64().is_some_and(|number| (number as f32).is_finite());
            expect(is_in_range || value.is_null(), "a number that an f32 can hold, or null for NaN", value)
        }
        Shape::F64 => expect(value.is_number() || value.is_null(), "a number, or null for NaN", value),
        Shape::Text => expect(value.is_string(), "text", value),
        Shape::Bytes => list(&Shape::Unsigned(8), value),
        Shape::Ipv4 => parsed::<Ipv4Addr>(value, "an IPv4 address such as \"10.0.0.7\""),
        Shape::Ipv6 => parsed::<Ipv6Addr>(value, "an IPv6 address such as \"fe80::7\""),
        Shape::Ip => parsed::<IpAddr>(value, "an address such as \"10.0.0.7\""),
        Shape::Unit => expect(value.is_null(), "null", value),
        Shape::Option(inner) => {
            if value.is_null() {
                Ok(())
            } else {
                fits(inner, value)
            }
        }
        Shape::List(element) => list(element, value),
        Shape::Array(element, count) => {
            counted(value, *count as usize)?;
            list(element, value)
        }
        Shape::Tuple(shapes) => {
            let values = counted(value, shapes.len())?;
            let mut both = shapes.iter().zip(values).enumerate();
            both.try_for_each(|(at, (shape, value))| fits(shape, value).map_err(|misfit| misfit.inside(at)))
        }
        Shape::Map(key, inner) => map(key, inner, value),
        Shape::Struct(fields) => structure(fields, value),
        Shape::Enum(variants) => enumeration(variants, value),
    }
}

fn expect(fits: bool, what: &str, value: &Value) -> Result<(), Misfit> {
    if fits { Ok(()) } else { Err(Misfit::new(format!("expected {what}, found {}", quote(value)))) }
}

fn quote(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("a list of {}", values.len()),
        Value::Object(fields) => format!("an object of {}", fields.len()),
        _ => {
            let text = value.to_string();
            let short: String = text.chars().take(QUOTED_MAX).collect();
            if short == text { text } else { format!("{short}...") }
        }
    }
}

fn whole(value: &Value, bits: u32, is_signed: bool) -> Result<(), Misfit> {
    let fits = match value {
        Value::Number(number) => is_whole(&number.to_string(), bits, is_signed),
        // What 64 bits cannot hold is text.
        Value::String(text) => bits == 128 && is_whole(text, bits, is_signed),
        _ => false,
    };
    expect(fits, &format!("a whole number {}", range_of(bits, is_signed)), value)
}

fn is_whole(text: &str, bits: u32, is_signed: bool) -> bool {
    !text.starts_with('+')
        && match (bits, is_signed) {
            (8, false) => text.parse::<u8>().is_ok(),
            (16, false) => text.parse::<u16>().is_ok(),
            (32, false) => text.parse::<u32>().is_ok(),
            (64, false) => text.parse::<u64>().is_ok(),
            (_, false) => text.parse::<u128>().is_ok(),
            (8, true) => text.parse::<i8>().is_ok(),
            (16, true) => text.parse::<i16>().is_ok(),
            (32, true) => text.parse::<i32>().is_ok(),
            (64, true) => text.parse::<i64>().is_ok(),
            (_, true) => text.parse::<i128>().is_ok(),
        }
}

fn parsed<T: std::str::FromStr>(value: &Value, what: &str) -> Result<(), Misfit> {
    expect(value.as_str().is_some_and(|text| text.parse::<T>().is_ok()), what, value)
}

fn counted(value: &Value, count: usize) -> Result<&Vec<Value>, Misfit> {
    let list = value.as_array().filter(|values| values.len() == count);
    list.ok_or_else(|| Misfit::new(format!("expected a list of {count}, found {}", quote(value))))
}

fn list(element: &Shape, value: &Value) -> Result<(), Misfit> {
    let values = value.as_array();
    let values = values.ok_or_else(|| Misfit::new(format!("expected a list, found {}", quote(value))))?;
    let mut all = values.iter().enumerate();
    all.try_for_each(|(at, value)| fits(element, value).map_err(|misfit| misfit.inside(at)))
}

fn map(key: &MapKey, inner: &Shape, value: &Value) -> Result<(), Misfit> {
    let object = value.as_object();
    let object = object.ok_or_else(|| Misfit::new(format!("expected an object, found {}", quote(value))))?;
    for (name, value) in object {
        let is_key = match key {
            MapKey::Text => true,
            MapKey::Bool => matches!(name.as_str(), "true" | "false"),
            MapKey::Unsigned(bits) => is_whole(name, *bits, false),
            MapKey::Signed(bits) => is_whole(name, *bits, true),
        };
        let fits = if is_key {
            fits(inner, value)
        } else {
            Err(Misfit::new("this key is none that the schema allows"))
        };
        fits.map_err(|misfit| misfit.inside(name))?;
    }
    Ok(())
}

fn structure(fields: &[Field], value: &Value) -> Result<(), Misfit> {
    let object = value.as_object();
    let object = object.ok_or_else(|| Misfit::new(format!("expected an object, found {}", quote(value))))?;
    if let Some(name) = object.keys().find(|name| !fields.iter().any(|field| field.name == **name)) {
        return Err(Misfit::new("there is no such field in the schema").inside(name));
    }
    for field in fields {
        match object.get(&field.name) {
            Some(value) => fits(&field.shape, value),
            // As serde reads it.
            None if matches!(field.shape, Shape::Option(_)) => Ok(()),
            None => Err(Misfit::new("this field is missing")),
        }
        .map_err(|misfit| misfit.inside(&field.name))?;
    }
    Ok(())
}

fn enumeration(variants: &[Variant], value: &Value) -> Result<(), Misfit> {
    let (name, held) = match value {
        Value::String(name) => (name, None),
        Value::Object(object) if object.len() == 1 => match object.iter().next() {
            Some((name, held)) => (name, Some(held)),
            None => return Err(Misfit::new("expected a variant, found an empty object")),
        },
        _ => {
            return Err(Misfit::new(format!(
                "expected the name of a variant, or an object with one as its only key, found {}",
                quote(value)
            )));
        }
    };
    let variant = variants.iter().find(|variant| variant.name == *name);
    let variant =
        variant.ok_or_else(|| Misfit::new(format!("there is no variant {name:?} in the schema")))?;
    match (&variant.holds, held) {
        (None, None) => Ok(()),
        (Some(shape), Some(held)) => fits(shape, held),
        (Some(_), None) => Err(Misfit::new("this variant holds something, which is missing")),
        (None, Some(_)) => Err(Misfit::new("this variant holds nothing: write its name alone")),
    }
    .map_err(|misfit| misfit.inside(name))
}
