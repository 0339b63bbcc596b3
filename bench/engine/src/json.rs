//! JSON, as much of it as result lines need: a value, a writer, a reader.

use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Num(f64),
    Str(String),
    Arr(Vec<Json>),
    Obj(Vec<(String, Json)>),
}

impl Json {
    pub fn object() -> Self {
        Self::Obj(Vec::new())
    }

    /// Sets a member of an object, replacing an older one. Nothing happens to what is no object.
    pub fn set(&mut self, name: &str, value: impl Into<Json>) {
        let Self::Obj(members) = self else { return };
        let value = value.into();
        match members.iter_mut().find(|(key, _)| key == name) {
            Some(member) => member.1 = value,
            None => members.push((name.to_owned(), value)),
        }
    }

    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Self::Obj(members) => members.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    pub fn num(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(Self::Num(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Some(Self::Str(text)) => text,
            _ => "",
        }
    }

    pub fn numbers(&self, name: &str) -> Vec<f64> {
        match self.get(name) {
            Some(Self::Arr(items)) => items
                .iter()
                .filter_map(|item| if let Self::Num(number) = item { Some(*number) } else { None })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Reads one value; `None` when the text is not exactly one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
        let value = reader.value(0)?;
        reader.space();
        (reader.at == reader.bytes.len()).then_some(value)
    }
}

impl From<f64> for Json {
    fn from(number: f64) -> Self {
        Self::Num(number)
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Num(number as f64)
    }
}

impl From<bool> for Json {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::Str(text)
    }
}

impl From<Vec<f64>> for Json {
    fn from(numbers: Vec<f64>) -> Self {
        Self::Arr(numbers.into_iter().map(Self::Num).collect())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => out.write_str("null"),
            Self::Bool(flag) => write!(out, "{flag}"),
            // Not a number has no JSON; a result line that holds one must still be a line.
            Self::Num(number) if !number.is_finite() => out.write_str("null"),
            Self::Num(number) if number.fract() == 0.0 && number.abs() < 1e15 => write!(out, "{}", *number as i64),
            Self::Num(number) if number.abs() >= 100.0 => write!(out, "{number:.2}"),
            Self::Num(number) => write!(out, "{number:.5}"),
            Self::Str(text) => quote(out, text),
            Self::Arr(items) => {
                out.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.write_str(",")?;
                    }
                    write!(out, "{item}")?;
                }
                out.write_str("]")
            }
            Self::Obj(members) => {
                out.write_str("{")?;
                for (at, (key, value)) in members.iter().enumerate() {
                    if at > 0 {
                        out.write_str(",")?;
                    }
                    quote(out, key)?;
                    write!(out, ":{value}")?;
                }
                out.write_str("}")
            }
        }
    }
}

fn quote(out: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    out.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            c if (c as u32) < 0x20 => write!(out, "\\u{:04x}", c as u32)?,
            c => write!(out, "{c}")?,
        }
    }
    out.write_str("\"")
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    const DEEPEST: usize = 32;

    fn space(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn take(&mut self, expected: u8) -> Option<()> {
        self.space();
        (self.bytes.get(self.at) == Some(&expected)).then(|| self.at += 1)
    }

    fn word(&mut self, word: &str, value: Json) -> Option<Json> {
        self.bytes.get(self.at..)?.starts_with(word.as_bytes()).then(|| self.at += word.len())?;
        Some(value)
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > Self::DEEPEST {
            return None;
        }
        self.space();
        match self.bytes.get(self.at)? {
            b'n' => self.word("null", Json::Null),
            b't' => self.word("true", Json::Bool(true)),
            b'f' => self.word("false", Json::Bool(false)),
            b'"' => self.string().map(Json::Str),
            b'[' => self.array(depth),
            b'{' => self.members(depth),
            _ => self.number(),
        }
    }

    fn array(&mut self, depth: usize) -> Option<Json> {
        self.take(b'[')?;
        let mut items = Vec::new();
        if self.take(b']').is_some() {
            return Some(Json::Arr(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(b',').is_none() {
                self.take(b']')?;
                return Some(Json::Arr(items));
            }
        }
    }

    fn members(&mut self, depth: usize) -> Option<Json> {
        self.take(b'{')?;
        let mut members = Vec::new();
        if self.take(b'}').is_some() {
            return Some(Json::Obj(members));
        }
        loop {
            self.space();
            let key = self.string()?;
            self.take(b':')?;
            members.push((key, self.value(depth + 1)?));
            if self.take(b',').is_none() {
                self.take(b'}')?;
                return Some(Json::Obj(members));
            }
        }
    }

    fn number(&mut self) -> Option<Json> {
        let rest = self.bytes.get(self.at..)?;
        let length = rest.iter().take_while(|b| b.is_ascii_digit() || b"+-.eE".contains(b)).count();
        let number = std::str::from_utf8(rest.get(..length)?).ok()?.parse().ok()?;
        self.at += length;
        Some(Json::Num(number))
    }

    fn string(&mut self) -> Option<String> {
        self.take(b'"')?;
        let mut text = Vec::new();
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            match byte {
                b'"' => return String::from_utf8(text).ok(),
                b'\\' => {
                    let escaped = *self.bytes.get(self.at)?;
                    self.at += 1;
                    match escaped {
                        b'n' => text.push(b'\n'),
                        b'u' => {
                            let hex = std::str::from_utf8(self.bytes.get(self.at..self.at + 4)?).ok()?;
                            self.at += 4;
                            let c = char::from_u32(u32::from_str_radix(hex, 16).ok()?)?;
                            text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                        }
                        other => text.push(other),
                    }
                }
                other => text.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut line = Json::object();
        line.set("name", "a \"quoted\"\n\\ thing é");
        line.set("count", 12_u64);
        line.set("rate", 1234.25);
        line.set("list", vec![1.0, -2.5, 0.0]);
        line.set("flag", true);
        line.set("none", Json::Null);
        line.set("count", 13_u64);
        assert_eq!(Json::parse(&line.to_string()), Some(line.clone()));
        assert_eq!(line.num("count"), Some(13.0));
    }

    #[test]
    fn broken_text_is_refused() {
        for text in ["", "{", "[1,", "{\"a\":}", "1 2", "\"\\u12", "{\"a\" 1}", &"[".repeat(100)] {
            assert_eq!(Json::parse(text), None, "{text}");
        }
    }
}
