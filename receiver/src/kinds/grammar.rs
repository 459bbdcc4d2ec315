//! Reading the text of a schema, which looks like a Rust type: written by an application, or by hand.

use std::iter::Peekable;
use std::str::CharIndices;

use super::shape::{Field, MapKey, Shape, Variant};

/// Types in types in types: no deeper than this, so that nothing that walks a schema can run out of stack.
const DEPTH_MAX: u32 = 32;

/// A schema has at most so many types, fields and variants.
const PARTS_MAX: u32 = 4096;

/// A name in a schema has at most so many bytes: it is repeated in every value.
const NAME_BYTES_MAX: usize = 128;

/// Reads a schema. The error is a sentence or two: where it is, what is wrong and what to do.
pub(super) fn parse(text: &str) -> Result<Shape, String> {
    let mut parser =
        Parser { tokens: tokens(text)?.into_iter().peekable(), depth: 0, parts: 0, last: (1, 1) };
    let shape = parser.shape()?;
    match parser.tokens.next() {
        None => Ok(shape),
        Some((Token::Mark(';'), _)) if parser.tokens.peek().is_none() => Ok(shape),
        Some((token, at)) => Err(wrong_at(at, &format!("the schema is complete, but {token} follows"))),
    }
}

/// Line and column.
type Position = (usize, usize);

fn wrong_at((line, column): Position, what: &str) -> String {
    format!("Line {line}, column {column} of the schema: {what}.")
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Name(String),
    Number(String),
    Mark(char),
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Word(text) | Self::Number(text) => write!(f, "`{text}`"),
            Self::Name(text) => write!(f, "{text:?}"),
            Self::Mark(mark) => write!(f, "`{mark}`"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<(Token, Position)>, String> {
    let mut tokens = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut letters = line.char_indices().peekable();
        while let Some((at, letter)) = letters.next() {
            let position = (number + 1, at + 1);
            let token = match letter {
                _ if letter.is_whitespace() => continue,
                '#' => break,
                '/' if letters.peek().is_some_and(|(_, next)| *next == '/') => break,
                '"' => Token::Name(quoted(&mut letters).ok_or_else(|| {
                    wrong_at(
                        position,
                        "this name does not end on its line, or has an escape other than \\uXXXX",
                    )
                })?),
                '0'..='9' => {
                    Token::Number(run(letter, &mut letters, |next| next.is_ascii_digit() || next == '_'))
                }
                _ if letter.is_alphanumeric() || letter == '_' => {
                    Token::Word(run(letter, &mut letters, |next| next.is_alphanumeric() || next == '_'))
                }
                '{' | '}' | '(' | ')' | '[' | ']' | '<' | '>' | ',' | ':' | ';' => Token::Mark(letter),
                _ => return Err(wrong_at(position, &format!("{letter:?} does not belong in a schema"))),
            };
            tokens.push((token, position));
        }
    }
    Ok(tokens)
}

fn run(first: char, letters: &mut Peekable<CharIndices<'_>>, goes_on: impl Fn(char) -> bool) -> String {
    let mut text = String::from(first);
    while let Some((_, letter)) = letters.next_if(|(_, letter)| goes_on(*letter)) {
        text.push(letter);
    }
    text
}

fn quoted(letters: &mut Peekable<CharIndices<'_>>) -> Option<String> {
    let mut text = String::new();
    loop {
        match letters.next()?.1 {
            '"' => return Some(text),
            '\\' => {
                letters.next_if(|(_, letter)| *letter == 'u')?;
                let mut code = 0;
                for _ in 0..4 {
                    code = code * 16 + letters.next()?.1.to_digit(16)?;
                }
                text.push(char::from_u32(code)?);
            }
            letter => text.push(letter),
        }
    }
}

struct Parser {
    tokens: Peekable<std::vec::IntoIter<(Token, Position)>>,
    depth: u32,
    parts: u32,
    last: Position,
}

impl Parser {
    fn next(&mut self, expected: &str) -> Result<(Token, Position), String> {
        let (token, at) = self.tokens.next().ok_or_else(|| {
            wrong_at(self.last, &format!("the schema ends here, and {expected} is missing"))
        })?;
        self.last = at;
        Ok((token, at))
    }

    fn is_next(&mut self, mark: char) -> bool {
        self.tokens.peek().is_some_and(|(token, _)| *token == Token::Mark(mark))
    }

    fn skip(&mut self, mark: char) -> bool {
        self.tokens.next_if(|(token, _)| *token == Token::Mark(mark)).is_some()
    }

    fn expect(&mut self, mark: char) -> Result<(), String> {
        let expected = format!("`{mark}`");
        match self.next(&expected)? {
            (Token::Mark(found), _) if found == mark => Ok(()),
            (token, at) => Err(wrong_at(at, &format!("expected {expected}, found {token}"))),
        }
    }

    fn count_part(&mut self) -> Result<(), String> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(format!(
                "It has more than {PARTS_MAX} types, fields and variants: make the record smaller."
            ));
        }
        Ok(())
    }

    fn shape(&mut self) -> Result<Shape, String> {
        self.count_part()?;
        if self.depth == DEPTH_MAX {
            return Err(wrong_at(
                self.last,
                &format!("types are nested more than {DEPTH_MAX} deep: make the record flatter"),
            ));
        }
        self.depth += 1;
        let shape = match self.next("a type")? {
            (Token::Mark('{'), _) => Shape::Struct(self.fields()?),
            (Token::Mark('('), _) => self.tuple()?,
            (Token::Mark('['), _) => self.array()?,
            (Token::Word(word), at) => self.named(&word, at)?,
            (token, at) => return Err(wrong_at(at, &format!("expected a type, found {token}"))),
        };
        self.depth -= 1;
        Ok(shape)
    }

    fn named(&mut self, word: &str, at: Position) -> Result<Shape, String> {
        Ok(match word {
            "bool" => Shape::Bool,
            "f32" => Shape::F32,
            "f64" => Shape::F64,
            "String" => Shape::Text,
            "bytes" => Shape::Bytes,
            "Ipv4Addr" => Shape::Ipv4,
            "Ipv6Addr" => Shape::Ipv6,
            "IpAddr" => Shape::Ip,
            "Option" => Shape::Option(self.inner()?.into()),
            "Vec" => Shape::List(self.inner()?.into()),
            "Map" => self.map()?,
            "struct" => {
                self.skip_type_name();
                self.expect('{')?;
                Shape::Struct(self.fields()?)
            }
            "enum" => {
                self.skip_type_name();
                self.expect('{')?;
                self.variants()?
            }
            "char" => {
                return Err(wrong_at(
                    at,
                    "a `char` cannot be read by a schema (postcard-dyn cannot either): make it a `u32` or a `String` \
                     in the record, with a new kind",
                ));
            }
            "Schema" => {
                return Err(wrong_at(
                    at,
                    "a schema inside of a record cannot be read: leave it out of the record, with a new kind",
                ));
            }
            _ => match whole_number(word) {
                Some(shape) => shape,
                None => return Err(wrong_at(at, &unknown_type(word))),
            },
        })
    }

    /// Whoever pastes a Rust type has one; it says nothing about bytes.
    fn skip_type_name(&mut self) {
        self.tokens.next_if(|(token, _)| matches!(token, Token::Word(_)));
    }

    fn inner(&mut self) -> Result<Shape, String> {
        self.expect('<')?;
        let inner = self.shape()?;
        self.expect('>')?;
        Ok(inner)
    }

    fn map(&mut self) -> Result<Shape, String> {
        self.expect('<')?;
        let key = self.shape()?;
        let at = self.last;
        self.expect(',')?;
        let value = self.shape()?;
        self.expect('>')?;
        let key = match key {
            Shape::Text => MapKey::Text,
            Shape::Bool => MapKey::Bool,
            Shape::Unsigned(bits) => MapKey::Unsigned(bits),
            Shape::Signed(bits) => MapKey::Signed(bits),
            _ => {
                return Err(wrong_at(
                    at,
                    "the key of a `Map` must be a `String`, a whole number or a `bool`, because JSON has no others",
                ));
            }
        };
        Ok(Shape::Map(key, value.into()))
    }

    fn array(&mut self) -> Result<Shape, String> {
        let element = self.shape()?;
        self.expect(';')?;
        let count = match self.next("a number")? {
            (Token::Number(number), at) => number
                .replace('_', "")
                .parse()
                .map_err(|_| wrong_at(at, &format!("{number} elements are more than a record can hold")))?,
            (token, at) => return Err(wrong_at(at, &format!("expected how many, found {token}"))),
        };
        self.expect(']')?;
        Ok(Shape::Array(element.into(), count))
    }

    /// What stands between parentheses, the first of which was read.
    fn tuple(&mut self) -> Result<Shape, String> {
        let (shapes, ends_with_comma) = self.shapes()?;
        match (shapes.as_slice(), ends_with_comma) {
            ([], _) => Ok(Shape::Unit),
            // Parentheses around one type are only that.
            ([only], false) => Ok(only.clone()),
            _ => Ok(Shape::Tuple(shapes)),
        }
    }

    fn shapes(&mut self) -> Result<(Vec<Shape>, bool), String> {
        let mut shapes = Vec::new();
        let mut ends_with_comma = false;
        while !self.skip(')') {
            shapes.push(self.shape()?);
            ends_with_comma = self.skip(',');
            if !ends_with_comma && !self.is_next(')') {
                self.expect(')')?;
            }
        }
        Ok((shapes, ends_with_comma))
    }

    fn name(&mut self, what: &str) -> Result<(String, Position), String> {
        self.count_part()?;
        match self.next(what)? {
            (Token::Word(name) | Token::Name(name), at) if name.len() <= NAME_BYTES_MAX => Ok((name, at)),
            (Token::Word(_) | Token::Name(_), at) => {
                Err(wrong_at(at, &format!("this name is longer than {NAME_BYTES_MAX} bytes")))
            }
            (token, at) => Err(wrong_at(at, &format!("expected {what}, found {token}"))),
        }
    }

    /// A comma, unless the block ends.
    fn separate(&mut self) -> Result<(), String> {
        if !self.skip(',') && !self.is_next('}') {
            self.expect(',')?;
        }
        Ok(())
    }

    fn fields(&mut self) -> Result<Vec<Field>, String> {
        let mut fields: Vec<Field> = Vec::new();
        while !self.skip('}') {
            let (name, at) = self.name("the name of a field")?;
            if fields.iter().any(|field| field.name == name) {
                return Err(wrong_at(
                    at,
                    &format!("there are two fields {name:?}: JSON could show only one"),
                ));
            }
            self.expect(':')?;
            fields.push(Field { name, shape: self.shape()? });
            self.separate()?;
        }
        Ok(fields)
    }

    fn variants(&mut self) -> Result<Shape, String> {
        let mut variants: Vec<Variant> = Vec::new();
        while !self.skip('}') {
            let (name, at) = self.name("the name of a variant")?;
            if variants.iter().any(|variant| variant.name == name) {
                return Err(wrong_at(
                    at,
                    &format!("there are two variants {name:?}: nobody could tell them apart"),
                ));
            }
            let holds = if self.skip('{') {
                Some(Shape::Struct(self.fields()?))
            } else if self.skip('(') {
                let (mut shapes, ends_with_comma) = self.shapes()?;
                Some(match (shapes.pop(), ends_with_comma) {
                    (Some(only), false) if shapes.is_empty() => only,
                    (last, _) => {
                        shapes.extend(last);
                        Shape::Tuple(shapes)
                    }
                })
            } else {
                None
            };
            variants.push(Variant { name, holds });
            self.separate()?;
        }
        Ok(Shape::Enum(variants))
    }
}

fn whole_number(word: &str) -> Option<Shape> {
    let (shape, bits): (fn(u32) -> Shape, _) = match word.split_at_checked(1)? {
        ("u", bits) => (Shape::Unsigned, bits),
        ("i", bits) => (Shape::Signed, bits),
        _ => return None,
    };
    match bits {
        "8" => Some(shape(8)),
        "16" => Some(shape(16)),
        "32" => Some(shape(32)),
        // As wide as serde makes it.
        "64" | "size" => Some(shape(64)),
        "128" => Some(shape(128)),
        _ => None,
    }
}

fn unknown_type(word: &str) -> String {
    let hint = match word.to_ascii_lowercase().as_str() {
        "str" | "string" | "text" => "; text is a `String`",
        "float" | "double" => "; fractions are `f32` and `f64`",
        "int" | "integer" | "uint" => "; whole numbers are `u8` to `u128` and `i8` to `i128`",
        "heapless" | "std" | "core" => {
            "; leave out the path and the capacity, `String` and `Vec<..>` are enough"
        }
        "list" | "array" | "seq" => "; a list is a `Vec<..>`, and with a fixed length `[..; 3]`",
        "boolean" => "; it is called `bool`",
        _ => {
            "; types of your own are written where they are used, as `{ field: u8 }` or `enum { One, Other }`"
        }
    };
    format!("there is no type `{word}`{hint}")
}
