//! The shell syntax that every shell reads in the same way.
//!
//! Rules that forbid must know the effect of a text, so this syntax is an allowlist: simple commands, lists
//! and pipes of them, redirections, and the compound commands of POSIX in their usual form. Any other text is
//! not recognized, and a command that contains such a text may run any program.

mod expansion;
mod word;

const MAX_DEPTH: usize = 32;

/// Words that are not programs in some shells, and are not in this syntax.
const RESERVED: &str = "\
    then else elif fi do done esac in } ]] select coproc repeat foreach end always nocorrect noglob function namespace";

/// Returns `true` if every shell reads `text` in the same way.
pub(super) fn is_recognized(text: &str) -> bool {
    let mut parser =
        Parser { chars: text.chars().collect(), at: 0, documents: Vec::new(), depth: 0, around: 0 };
    let harmless = |letter: &char| *letter == '\n' || *letter == '\t' || !letter.is_control();
    parser.chars.iter().all(harmless)
        && parser.list(&[]).is_some()
        && parser.at == parser.chars.len()
        && parser.documents.is_empty()
}

struct Document {
    end: String,
    indented: bool,
    quoted: bool,
}

/// The parser. A method that returns `None` has found text that is not in the shared syntax.
struct Parser {
    chars: Vec<char>,
    at: usize,
    documents: Vec<Document>,
    depth: usize,
    around: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Nothing,
    Prefix,
    Program,
}

impl Parser {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn follows(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, letter)| self.peek(ahead) == Some(letter))
    }

    fn skip(&mut self, text: &str) -> bool {
        let found = self.follows(text);
        self.at += if found { text.chars().count() } else { 0 };
        found
    }

    fn blanks(&mut self) {
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(' ' | '\t'), _) => self.at += 1,
                (Some('\\'), Some('\n')) => self.at += 2,
                _ => return,
            }
        }
    }

    /// Skips blanks, and a comment after them.
    fn gap(&mut self) -> Option<()> {
        self.blanks();
        if self.peek(0) == Some('#') {
            while let Some(letter) = self.peek(0).filter(|letter| *letter != '\n') {
                // Older shells end a command substitution even within a comment.
                if self.around > 0 && matches!(letter, ')' | '`') {
                    return None;
                }
                self.at += 1;
            }
        }
        Some(())
    }

    /// Skips blanks, comments and line ends. Reads the here-documents after each line end.
    fn lines(&mut self) -> Option<()> {
        loop {
            self.gap()?;
            if self.peek(0) != Some('\n') {
                return Some(());
            }
            self.at += 1;
            self.read_documents()?;
        }
    }

    fn is_keyword(&self, word: &str) -> bool {
        let behind = self.peek(word.chars().count());
        self.follows(word) && behind.is_none_or(|letter| " \t\n;&|<>()".contains(letter))
    }

    fn keyword(&mut self, word: &str) -> Option<()> {
        let found = self.is_keyword(word);
        self.at += if found { word.chars().count() } else { 0 };
        found.then_some(())
    }

    /// Reads commands up to one of the words in `ends`, or to the end of the construct around them.
    fn list(&mut self, ends: &[&str]) -> Option<()> {
        self.depth += 1;
        let read = if self.depth > MAX_DEPTH { None } else { self.commands(ends) };
        self.depth -= 1;
        read
    }

    fn commands(&mut self, ends: &[&str]) -> Option<()> {
        loop {
            self.lines()?;
            let Some(letter) = self.peek(0) else { return Some(()) };
            if letter == ')' || self.follows(";;") || ends.iter().any(|end| self.is_keyword(end)) {
                return Some(());
            }
            self.command()?;
            self.gap()?;
            match (self.peek(0), self.peek(1)) {
                (None | Some(')' | '\n'), _) | (Some(';'), Some(';')) => {}
                (Some('&'), Some('&')) | (Some('|'), Some('|' | '&')) => self.joined(2)?,
                (Some('|'), _) => self.joined(1)?,
                (Some('&'), Some('!' | '|' | ';')) | (Some(';'), Some('&' | '|')) => return None,
                (Some(';' | '&'), _) => self.at += 1,
                _ => return None,
            }
        }
    }

    /// Continues after an operator that is followed by a command.
    fn joined(&mut self, length: usize) -> Option<()> {
        self.at += length;
        self.lines()?;
        self.peek(0).filter(|letter| !");&|".contains(*letter)).map(|_| ())
    }

    fn command(&mut self) -> Option<()> {
        if self.keyword("time").is_some() {
            self.blanks();
            let _ = self.keyword("-p");
            self.blanks();
        }
        let _ = self.keyword("!");
        self.blanks();
        if self.is_keyword("if") {
            self.conditional()?;
        } else if self.is_keyword("while") || self.is_keyword("until") {
            self.at += 5;
            self.list(&["do"])?;
            self.body("do", "done")?;
        } else if self.is_keyword("for") {
            self.repetition()?;
        } else if self.is_keyword("case") {
            self.choice()?;
        } else if self.is_keyword("{") {
            self.body("{", "}")?;
        } else if self.is_keyword("[[") {
            self.condition()?;
        } else if self.skip("((") {
            self.sum(")", true)?;
        } else if self.skip("(") {
            self.parenthesis()?;
        } else {
            return self.simple();
        }
        self.redirections()
    }

    fn parenthesis(&mut self) -> Option<()> {
        // If a here-document is announced before the parentheses, shells differ in where the document begins.
        self.documents.is_empty().then_some(())?;
        self.around += 1;
        let read = self.list(&[]);
        self.around -= 1;
        read?;
        (self.documents.is_empty() && self.skip(")")).then_some(())
    }

    fn body(&mut self, begin: &str, end: &str) -> Option<()> {
        self.keyword(begin)?;
        self.list(&[end])?;
        self.keyword(end)
    }

    fn conditional(&mut self) -> Option<()> {
        self.keyword("if")?;
        loop {
            self.list(&["then"])?;
            self.keyword("then")?;
            self.list(&["elif", "else", "fi"])?;
            if self.keyword("elif").is_none() {
                break;
            }
        }
        if self.keyword("else").is_some() {
            self.list(&["fi"])?;
        }
        self.keyword("fi")
    }

    fn repetition(&mut self) -> Option<()> {
        self.keyword("for")?;
        self.blanks();
        if self.skip("((") {
            self.sum(")", true)?;
        } else {
            self.name()?;
            self.blanks();
            if self.keyword("in").is_some() {
                loop {
                    self.gap()?;
                    if self.peek(0).is_none_or(|letter| letter == '\n' || letter == ';') {
                        break;
                    }
                    self.argument()?;
                }
            }
        }
        self.gap()?;
        matches!(self.peek(0), Some(';' | '\n')).then_some(())?;
        self.at += usize::from(self.peek(0) == Some(';'));
        self.lines()?;
        self.body("do", "done")
    }

    fn choice(&mut self) -> Option<()> {
        self.keyword("case")?;
        self.blanks();
        self.argument()?;
        self.lines()?;
        self.keyword("in")?;
        loop {
            self.lines()?;
            if self.keyword("esac").is_some() {
                return Some(());
            }
            self.skip("(");
            loop {
                self.blanks();
                self.argument()?;
                self.blanks();
                if !self.skip("|") {
                    break;
                }
            }
            self.skip(")").then_some(())?;
            self.list(&["esac"])?;
            self.skip(";;");
        }
    }

    /// Reads a condition `[[ … ]]` that contains no parentheses.
    fn condition(&mut self) -> Option<()> {
        self.keyword("[[")?;
        loop {
            self.blanks();
            if self.keyword("]]").is_some() {
                return Some(());
            }
            let operator = self.skip("&&")
                || self.skip("||")
                || self.keyword("<").or_else(|| self.keyword(">")).is_some();
            if !operator {
                self.argument()?;
            }
        }
    }

    fn redirections(&mut self) -> Option<()> {
        loop {
            self.blanks();
            if !self.redirection()? {
                return Some(());
            }
        }
    }

    fn simple(&mut self) -> Option<()> {
        let mut seen = Seen::Nothing;
        loop {
            self.blanks();
            if self.redirection()? {
                seen = if seen == Seen::Nothing { Seen::Prefix } else { seen };
                continue;
            }
            match self.peek(0) {
                None | Some('\n' | ';' | '&' | '|' | ')') => break,
                Some('#') => break,
                _ if seen == Seen::Program => {
                    if !self.array()? {
                        self.argument()?;
                    }
                }
                _ if self.assignment()? => seen = Seen::Prefix,
                _ => {
                    let program = self.program(seen == Seen::Nothing)?;
                    if self.peek(0) == Some('(') {
                        return if seen == Seen::Nothing { self.function(&program) } else { None };
                    }
                    seen = Seen::Program;
                }
            }
        }
        (seen != Seen::Nothing).then_some(())
    }

    fn function(&mut self, name: &str) -> Option<()> {
        super::lexer::is_name(name).then_some(())?;
        self.skip("()").then_some(())?;
        self.lines()?;
        self.body("{", "}")?;
        self.redirections()
    }

    fn redirection(&mut self) -> Option<bool> {
        let numbered = self.peek(0).is_some_and(|letter| letter.is_ascii_digit())
            && matches!(self.peek(1), Some('<' | '>'));
        let at = self.at;
        self.at += usize::from(numbered);
        const OPERATORS: [&str; 12] =
            ["<<<", "<<-", "<<", "<&", "<>", "<", "&>>", "&>", ">>", ">&", ">|", ">"];
        let found = OPERATORS.iter().find(|operator| self.follows(operator)).copied();
        let Some(operator) = found.filter(|operator| !numbered || !operator.starts_with('&')) else {
            self.at = at;
            return Some(false);
        };
        // `<(…)` is a word instead of a redirection.
        if matches!(operator, "<" | ">") && self.peek(1) == Some('(') {
            self.at = at;
            return Some(false);
        }
        self.at += operator.chars().count();
        if operator.starts_with("<<") && operator != "<<<" {
            self.blanks();
            let (end, quoted) = self.delimiter()?;
            self.documents.push(Document { end, indented: operator == "<<-", quoted });
            return Some(true);
        }
        self.blanks();
        if self.peek(0).is_some_and(|letter| "!&|#=~^*?[{".contains(letter)) {
            return None;
        }
        self.argument()?;
        Some(true)
    }

    fn read_documents(&mut self) -> Option<()> {
        for Document { end, indented, quoted } in std::mem::take(&mut self.documents) {
            let mut text = String::new();
            loop {
                let rest = self.chars.get(self.at..).filter(|rest| !rest.is_empty())?;
                let length = rest.iter().position(|letter| *letter == '\n').unwrap_or(rest.len());
                let line: String = rest[..length].iter().collect();
                self.at = (self.at + length + 1).min(self.chars.len());
                let compared = if indented { line.trim_start_matches('\t') } else { &line };
                if compared == end {
                    break;
                }
                text.push_str(&line);
                text.push('\n');
            }
            if !quoted {
                self.nested(&text).expansions()?;
            }
        }
        Some(())
    }

    fn nested(&self, text: &str) -> Self {
        let chars = text.chars().collect();
        Self { chars, at: 0, documents: Vec::new(), depth: self.depth + 1, around: self.around + 1 }
    }
}

#[cfg(test)]
mod tests;
