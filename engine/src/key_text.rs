//! Keys in messages. A key is somebody's data: whoever shows a message to people who may not see that takes the keys out.

/// Bytes of a key that are shown.
const SHOWN: usize = 32;
const BEGINS: &str = "\\x";
const CUT: &str = "...";

/// A key as messages show it.
pub fn hex(key: &[u8]) -> String {
    let mut text: String = key.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect();
    if key.len() > SHOWN {
        text += CUT;
    }
    format!("{BEGINS}{text}")
}

/// The message without the keys that [`hex`] has put into it.
pub fn hide(message: &str) -> String {
    let mut parts = message.split(BEGINS);
    let mut hidden = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| matches!(c, '0'..='9' | 'a'..='f'));
        hidden += "(hidden)";
        hidden += rest.strip_prefix(CUT).unwrap_or(rest);
    }
    hidden
}

#[cfg(test)]
mod tests {
    use super::{hex, hide};

    #[test]
    fn what_was_shown_is_hidden() {
        let message = |long: &[u8]| format!("key {} comes after {}, on page 7", hex(long), hex(b"b"));
        assert_eq!(message(b"ab"), "key \\x6162 comes after \\x62, on page 7");
        assert_eq!(hide(&message(b"ab")), "key (hidden) comes after (hidden), on page 7");
        assert_eq!(hide(&message(&[0xfe; 99])), "key (hidden) comes after (hidden), on page 7");
        assert_eq!(hide("page 7 is empty"), "page 7 is empty");
        assert_eq!(hide(&hex(b"")), "(hidden)");
    }
}
