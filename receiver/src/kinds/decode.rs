//! From a body to JSON, by its schema. The body is whatever a device, or somebody who has its secret, has sent.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Number, Value};

use super::shape::{MapKey, Misfit, Shape};

/// A body becomes at most so many values: a body has at most 65,535 bytes, but what takes none is free.
const VALUES_MAX: u32 = 1 << 18;

/// What a body says, or why it is none of this shape.
pub(super) fn decode(shape: &Shape, body: &[u8]) -> Result<Value, String> {
    let mut reader = Reader { rest: body, len: body.len(), values: 0 };
    let value = reader.value(shape).map_err(Misfit::into_sentence)?;
    match reader.rest.len() {
        0 => Ok(value),
        1 => Err(format!("a byte of the {} follows what the schema describes", body.len())),
        rest => Err(format!("{rest} bytes of the {} follow what the schema describes", body.len())),
    }
}

struct Reader<'b> {
    rest: &'b [u8],
    len: usize,
    values: u32,
}

impl<'b> Reader<'b> {
    fn take(&mut self, count: u128, what: &str) -> Result<&'b [u8], Misfit> {
        let taken = usize::try_from(count).ok().and_then(|count| self.rest.split_at_checked(count));
        match taken {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None if self.rest.is_empty() => {
                Err(Misfit::new(format!("the body ends after {} bytes, before this {what}", self.len)))
            }
            None => Err(Misfit::new(format!(
                "this {what} should have {count} bytes, and only {} of the {} are left",
                self.rest.len(),
                self.len
            ))),
        }
    }

    fn byte(&mut self, what: &str) -> Result<u8, Misfit> {
        Ok(self.take(1, what)?.first().copied().unwrap_or_default())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Misfit> {
        let bytes = self.take(N as u128, what)?;
        Ok(bytes.first_chunk().copied().unwrap_or([0; N]))
    }

    /// A number of so many bits: seven a byte, the lowest first. Eight bits are a byte.
    fn unsigned(&mut self, bits: u32, what: &str) -> Result<u128, Misfit> {
        if bits == 8 {
            return self.byte(what).map(u128::from);
        }
        let mut number = 0;
        let mut shift = 0;
        while shift < bits {
            let byte = self.byte(what)?;
            let seven = u128::from(byte & 0x7f);
            if shift + 7 > bits && seven >> (bits - shift) != 0 {
                break;
            }
            number |= seven << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
            shift += 7;
        }
        Err(Misfit::new(format!("this {what} has more than {bits} bits")))
    }

    fn signed(&mut self, bits: u32) -> Result<i128, Misfit> {
        let number = self.unsigned(bits, "number")?;
        if bits == 8 {
            return Ok(i128::from(number as u8 as i8));
        }
        // Signs come last: 0, -1, 1, -2, ...
        let half = (number >> 1) as i128;
        Ok(if number & 1 == 0 { half } else { !half })
    }

    fn text(&mut self) -> Result<&'b str, Misfit> {
        let len = self.unsigned(64, "text")?;
        let bytes = self.take(len, "text")?;
        std::str::from_utf8(bytes).map_err(|_| Misfit::new("this text is not UTF-8"))
    }

    fn choice(&mut self, what: &str) -> Result<bool, Misfit> {
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Misfit::new(format!("this {what} is {other}, and should be 0 or 1"))),
        }
    }

    fn value(&mut self, shape: &Shape) -> Result<Value, Misfit> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(Misfit::new(format!("the body would become more than {VALUES_MAX} values")));
        }
        Ok(match shape {
            Shape::Bool => self.choice("bool")?.into(),
            Shape::Unsigned(bits) => unsigned_json(self.unsigned(*bits, "number")?),
            Shape::Signed(bits) => signed_json(self.signed(*bits)?),
            Shape::F32 => short_float(f32::from_le_bytes(self.array("number")?)),
            Shape::F64 => float(f64::from_le_bytes(self.array("number")?)),
            Shape::Text => self.text()?.into(),
            Shape::Bytes => {
                let len = self.unsigned(64, "list of bytes")?;
                self.take(len, "list of bytes")?.into()
            }
            Shape::Ipv4 => Ipv4Addr::from(self.array("address")?).to_string().into(),
            Shape::Ipv6 => Ipv6Addr::from(self.array("address")?).to_string().into(),
            Shape::Ip => match self.unsigned(32, "address")? {
                0 => self.value(&Shape::Ipv4)?,
                1 => self.value(&Shape::Ipv6)?,
                other => return Err(Misfit::new(format!("there is no IP of version {other}"))),
            },
            Shape::Unit => Value::Null,
            Shape::Option(inner) => match self.choice("option")? {
                false => Value::Null,
                true => self.value(inner)?,
            },
            Shape::List(element) => {
                let count = self.unsigned(64, "list")?;
                self.elements(element, count)?
            }
            Shape::Array(element, count) => self.elements(element, u128::from(*count))?,
            Shape::Tuple(shapes) => self.tuple(shapes)?,
            Shape::Map(key, value) => self.map(key, value)?,
            Shape::Struct(fields) => {
                let mut object = Map::new();
                for field in fields {
                    let value = self.value(&field.shape).map_err(|misfit| misfit.inside(&field.name))?;
                    object.insert(field.name.clone(), value);
                }
                object.into()
            }
            Shape::Enum(variants) => {
                let number = self.unsigned(32, "variant")?;
                let variant = usize::try_from(number).ok().and_then(|number| variants.get(number));
                let variant = variant.ok_or_else(|| {
                    Misfit::new(format!("there is no variant {number}, the schema has {}", variants.len()))
                })?;
                match &variant.holds {
                    None => variant.name.clone().into(),
                    Some(shape) => {
                        let value = self.value(shape).map_err(|misfit| misfit.inside(&variant.name))?;
                        Map::from_iter([(variant.name.clone(), value)]).into()
                    }
                }
            }
        })
    }

    /// The count is whatever the body says: memory is taken for what is there, not for what should be.
    fn elements(&mut self, element: &Shape, count: u128) -> Result<Value, Misfit> {
        let mut elements = Vec::new();
        for at in 0..count {
            elements.push(self.value(element).map_err(|misfit| misfit.inside(at))?);
        }
        Ok(elements.into())
    }

    fn tuple(&mut self, shapes: &[Shape]) -> Result<Value, Misfit> {
        let each = |(at, shape)| self.value(shape).map_err(|misfit| misfit.inside(at));
        shapes.iter().enumerate().map(each).collect()
    }

    fn map(&mut self, key: &MapKey, value: &Shape) -> Result<Value, Misfit> {
        let mut object = Map::new();
        for at in 0..self.unsigned(64, "map")? {
            let key = match key {
                MapKey::Text => self.text().map(str::to_owned),
                MapKey::Bool => self.choice("key").map(|key| key.to_string()),
                MapKey::Unsigned(bits) => self.unsigned(*bits, "key").map(|key| key.to_string()),
                MapKey::Signed(bits) => self.signed(*bits).map(|key| key.to_string()),
            };
            let key = key.map_err(|misfit| misfit.inside(at))?;
            let value = self.value(value).map_err(|misfit| misfit.inside(&key))?;
            if object.contains_key(&key) {
                return Err(Misfit::new("this key is there twice").inside(key));
            }
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

/// JSON's readers keep 64 bits at most; what is larger is text, so that no digit is lost.
fn unsigned_json(number: u128) -> Value {
    u64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from)
}

fn signed_json(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from)
}

fn float(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// With as many digits as tell it from its neighbours: 21.3, and not 21.299999237060547.
fn short_float(number: f32) -> Value {
    let text = serde_json::to_string(&number).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or(Value::Null)
}
