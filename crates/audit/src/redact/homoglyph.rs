//! Reads a name as a human sees it: without invisible characters, and with ASCII letters for those that look
//! like them.

/// Returns a name as a human sees it, in ASCII where possible.
pub(super) fn readable(name: &str) -> String {
    name.chars().filter(|letter| !is_invisible(*letter)).map(looks_like).collect()
}

fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fe00}'..='\u{fe0f}' | '\u{300}'..='\u{36f}' | '\u{115f}' | '\u{1160}'
        | '\u{3164}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the ASCII letter that this character looks like.
fn looks_like(letter: char) -> char {
    let at = |first: char, to: u8| {
        u32::from(letter)
            .checked_sub(u32::from(first))
            .and_then(|by| u8::try_from(by).ok())
            .map_or(letter, |by| char::from(to.wrapping_add(by)))
    };
    match letter {
        // The full-width forms of ASCII characters.
        '\u{ff01}'..='\u{ff5e}' => at('\u{ff01}', b'!'),
        // Each mathematical alphabet has 52 letters, with few exceptions.
        '\u{1d400}'..='\u{1d6a3}' => {
            let index = (u32::from(letter) - 0x1d400) % 52;
            let (first, by) = if index < 26 { (b'a', index) } else { (b'a', index - 26) };
            char::from(first.wrapping_add(u8::try_from(by).unwrap_or(0)))
        }
        'а' | 'α' | 'ɑ' | 'á' | 'à' | 'â' | 'ä' | 'ã' | 'å' | 'ā' | 'А' | 'Α' | 'ⓐ' => 'a',
        'в' | 'В' | 'Β' | 'Ь' | 'ь' | 'ƅ' => 'b',
        'с' | 'С' | 'ϲ' | 'ç' | 'ć' | 'č' | 'ᴄ' => 'c',
        'ԁ' | 'ɗ' | 'đ' | 'ď' | 'ⅾ' => 'd',
        'е' | 'ё' | 'Е' | 'Ε' | 'ε' | 'é' | 'è' | 'ê' | 'ë' | 'ē' | 'ҽ' => 'e',
        'ց' | 'ɡ' | 'ğ' => 'g',
        'һ' | 'Н' | 'Η' | 'հ' => 'h',
        'і' | 'ї' | 'І' | 'Ι' | 'ι' | 'í' | 'ì' | 'î' | 'ï' | 'ı' | 'ɩ' | 'ⅰ' => 'i',
        'ј' | 'Ј' | 'ϳ' => 'j',
        'к' | 'К' | 'κ' | 'Κ' | 'ĸ' => 'k',
        'ӏ' | 'ⅼ' | 'ł' => 'l',
        'м' | 'М' | 'Μ' | 'ⅿ' => 'm',
        'п' | 'ո' | 'ñ' | 'η' | 'Ν' => 'n',
        'о' | 'О' | 'ο' | 'Ο' | 'σ' | 'ó' | 'ò' | 'ô' | 'ö' | 'õ' | 'ø' | 'օ' => 'o',
        'р' | 'Р' | 'ρ' | 'Ρ' => 'p',
        'г' | 'ɼ' => 'r',
        'ѕ' | 'Ѕ' | 'ś' | 'š' | 'ş' | 'ꜱ' => 's',
        'т' | 'Т' | 'τ' | 'Τ' | 'ť' => 't',
        'υ' | 'ս' | 'ú' | 'ù' | 'û' | 'ü' => 'u',
        'ѵ' | 'ν' | 'ⅴ' => 'v',
        'ԝ' | 'ѡ' | 'ω' | 'ɯ' => 'w',
        'х' | 'Х' | 'χ' | 'Χ' | 'ⅹ' => 'x',
        'у' | 'У' | 'γ' | 'Υ' | 'ý' | 'ÿ' => 'y',
        'ᴢ' | 'Ζ' | 'ž' => 'z',
        '‐' | '‑' | '‒' | '–' | '—' | '−' => '-',
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{3000}' => ' ',
        other => other,
    }
}
