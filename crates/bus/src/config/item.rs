//! Values read as settings: what is expected of each, and the complaint if it is something else.

use narrows_base::suggest::nearest;

use super::notes::Notes;
use super::tree::{Entry, Kind, Node};

/// How much of a text is shown.
const LONGEST: usize = 40;

/// One value, and the name by which a complaint calls it. What returns `None` has complained.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) notes: &'a Notes<'a>,
    pub(super) name: &'a str,
    pub(super) node: &'a Node,
}

impl<'a> Item<'a> {
    /// Complains about it.
    pub(super) fn fail(self, what: &str, hint: Option<String>) {
        self.notes.mistake(self.node.at, format!("`{}` {what}", self.name), hint);
    }

    /// Says what is strange about it.
    pub(super) fn warn(self, what: &str) {
        self.notes.warning(self.node.at, format!("`{}` {what}", self.name));
    }

    /// Complains that it is something else than `wanted`. What it is stays unsaid: it may be a secret.
    pub(super) fn expected<T>(self, wanted: &str, hint: Option<&str>) -> Option<T> {
        self.fail(&format!("must be {wanted}"), hint.map(str::to_owned));
        None
    }

    /// A text that is not empty and that a system call can take.
    pub(super) fn text(self) -> Option<&'a str> {
        match &self.node.kind {
            Kind::Text(text) if text.contains('\0') => self.expected("a text without NUL", None),
            Kind::Text(text) if !text.trim().is_empty() => Some(text),
            Kind::Text(_) => self.expected("a text that is not empty", None),
            _ => self.expected("a text in quotes", None),
        }
    }

    /// A text that `reading` understands.
    pub(super) fn parsed<T>(self, reading: impl FnOnce(&str) -> Result<T, &'static str>) -> Option<T> {
        let text = self.text()?;
        reading(text).map_err(|reason| self.refuse(text, reason)).ok()
    }

    /// Complains that it cannot be this text.
    pub(super) fn refuse(self, text: &str, reason: &str) {
        self.fail(&format!("cannot be \"{}\": {reason}", shown(text)), None);
    }

    /// One of a few texts.
    pub(super) fn one_of<T: Copy>(self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = match &self.node.kind {
            Kind::Text(text) => text.as_str(),
            _ => "",
        };
        let names = || choices.iter().map(|(name, _)| *name);
        let found = choices.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let quoted: Vec<String> = names().map(|name| format!("\"{name}\"")).collect();
            let hint = nearest(text, names()).map(|near| format!("did you mean \"{near}\"?"));
            self.fail(&format!("must be one of {}", quoted.join(", ")), hint);
        }
        found.map(|(_, choice)| *choice)
    }

    /// A switch.
    pub(super) fn flag(self) -> Option<bool> {
        match self.node.kind {
            Kind::Flag(flag) => Some(flag),
            _ => self.expected("true or false", None),
        }
    }

    /// A whole number from `least` to `most`.
    pub(super) fn count(self, least: u64, most: u64) -> Option<u64> {
        let number = match self.node.kind {
            Kind::Whole(number) => u64::try_from(number).ok(),
            _ => None,
        };
        let fits = number.filter(|number| (least..=most).contains(number));
        if fits.is_none() {
            self.fail(&format!("must be a whole number from {least} to {most}"), None);
        }
        fits
    }

    /// The items of a list.
    pub(super) fn list(self, hint: &str) -> Option<impl Iterator<Item = Item<'a>>> {
        let Kind::List(nodes) = &self.node.kind else { return self.expected("a list", Some(hint)) };
        Some(nodes.iter().map(move |node| Item { node, ..self }))
    }

    /// A table.
    pub(super) fn table(self) -> Option<Table<'a>> {
        let Kind::Table(entries) = &self.node.kind else { return self.expected("a table", None) };
        Some(Table { notes: self.notes, name: self.name, at: self.node.at, entries })
    }
}

/// The entries of a table, and the name by which a complaint calls it.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) notes: &'a Notes<'a>,
    pub(super) name: &'a str,
    pub(super) at: usize,
    pub(super) entries: &'a [Entry],
}

impl<'a> Table<'a> {
    /// The value of `key`, if there is one.
    pub(super) fn get(self, key: &str) -> Option<Item<'a>> {
        self.items().find(|item| item.name == key)
    }

    /// All values, by their keys, in the order of the file.
    pub(super) fn items(self) -> impl Iterator<Item = Item<'a>> {
        let notes = self.notes;
        self.entries.iter().map(move |entry| Item { notes, name: &entry.key, node: &entry.node })
    }

    /// Complains about the table as such.
    pub(super) fn fail(self, what: impl Into<String>, hint: &str) {
        self.notes.mistake(self.at, what, Some(hint.to_owned()));
    }

    /// The keys that are none of `known`, with what was probably meant.
    pub(super) fn strangers(
        self,
        known: &'a [&'static str],
    ) -> impl Iterator<Item = (&'a Entry, Option<&'static str>)> {
        self.entries.iter().filter(|entry| !known.contains(&entry.key.as_str())).map(|entry| {
            let plain = entry.key.to_ascii_lowercase().replace('-', "_");
            let same = known.iter().copied().find(|known| *known == plain);
            (entry, same.or_else(|| nearest(&plain, known.iter().copied())))
        })
    }

    /// Complains about every key that is none of `known`; `usual` has hints for those that are often tried.
    pub(super) fn only(self, known: &'a [&'static str], usual: &[(&str, &str)]) {
        for (entry, near) in self.strangers(known) {
            let usual = usual.iter().find(|(key, _)| *key == entry.key).map(|(_, hint)| (*hint).to_owned());
            let near = || near.map(|near| format!("did you mean `{near}`?"));
            let all = || format!("what may stand there: {}", known.join(", "));
            let what = format!("there is no setting `{}`{}", shown(&entry.key), self.place());
            self.notes.mistake(entry.at, what, Some(usual.or_else(near).unwrap_or_else(all)));
        }
    }

    /// ` in [name]`, for a complaint.
    pub(super) fn place(self) -> String {
        if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) }
    }
}

/// The beginning of a text that somebody wrote, safe to print.
pub(super) fn shown(text: &str) -> String {
    narrows_base::text::quoted(text, LONGEST)
}
