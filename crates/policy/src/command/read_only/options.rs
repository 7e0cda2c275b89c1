//! Programs that only read, and their options.

pub(super) enum Arguments {
    /// Any arguments. The program has no harmful options, and opens no file.
    Any,
    Listed(Options),
}

pub(super) struct Options {
    flags: &'static str,
    /// Option letters that take a value, in the same word or in the next.
    values: &'static str,
    /// Full names of long options, which may have a value.
    long: &'static str,
    /// Maximum number of words other than options.
    operands: usize,
}

use Arguments::{Any, Listed};

const fn listed(flags: &'static str, values: &'static str, long: &'static str, operands: usize) -> Arguments {
    Listed(Options { flags, values, long, operands })
}

const MANY: usize = usize::MAX;

/// Options of `grep`. Abbreviations of long options are not allowed, because they could hide which files a
/// search leaves out.
const GREP: Options = Options::new(
    "0123456789abcEFGhHIilLnNopPqrRsTuUvVwxyzZ",
    "ABCDdefm",
    "extended-regexp fixed-strings basic-regexp perl-regexp regexp file ignore-case no-ignore-case word-regexp line-regexp \
     null-data no-messages invert-match version help max-count byte-offset line-number line-buffered with-filename \
     no-filename label only-matching quiet silent binary-files text directories devices recursive \
     dereference-recursive include exclude exclude-from exclude-dir files-without-match files-with-matches count \
     initial-tab unix-byte-offsets null before-context after-context context group-separator no-group-separator color \
     colour binary",
);

/// Options of programs that print hashes. `--check` is not listed, because it opens every file that a list of
/// hashes names.
const HASH: Options = Options::new("btz", "l", "binary tag text zero length help version");

/// Programs that replace an argument `@FILE` by the words in that file.
const RESPONSE_FILE_READERS: &[&str] = &["strings"];

/// Programs, each with the arguments with which it only reads.
pub(super) const PROGRAMS: &[(&str, Arguments)] = &[
    ("basename", listed("az", "s", "multiple suffix zero help version", MANY)),
    (
        "cat",
        listed(
            "AbeEnstTuv",
            "",
            "show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting help version",
            MANY,
        ),
    ),
    ("cksum", listed("z", "al", "algorithm length tag untagged zero base64 raw debug help version", MANY)),
    (
        "cmp",
        listed("bchlsvxz", "in", "print-bytes ignore-initial verbose bytes quiet silent help version", MANY),
    ),
    (
        "comm",
        listed(
            "123iz",
            "",
            "check-order nocheck-order output-delimiter total zero-terminated help version",
            MANY,
        ),
    ),
    (
        "cut",
        listed(
            "nsz",
            "bcdf",
            "bytes characters delimiter fields only-delimited complement output-delimiter zero-terminated help version",
            MANY,
        ),
    ),
    (
        "df",
        listed(
            "ahHiklmPTv",
            "Btx",
            "all block-size total human-readable si inodes local portability type exclude-type print-type output help version",
            MANY,
        ),
    ),
    (
        "diff",
        listed(
            "0123456789abBcdeEiNnpPqrsTtuwyZ",
            "CFILUWxXS",
            "normal brief report-identical-files context unified ed rcs side-by-side width left-column \
             suppress-common-lines show-c-function show-function-line label expand-tabs initial-tab tabsize \
             suppress-blank-empty recursive no-dereference new-file unidirectional-new-file ignore-file-name-case \
             no-ignore-file-name-case exclude exclude-from starting-file from-file to-file ignore-case \
             ignore-tab-expansion ignore-trailing-space ignore-space-change ignore-all-space ignore-blank-lines \
             ignore-matching-lines text strip-trailing-cr minimal horizon-lines speed-large-files color palette \
             help version",
            MANY,
        ),
    ),
    ("dirname", listed("z", "", "zero help version", MANY)),
    (
        "du",
        listed(
            "0abcDhHklLmsSxg",
            "BdtX",
            "null all apparent-size block-size bytes total dereference-args max-depth human-readable inodes \
             count-links dereference no-dereference separate-dirs si summarize threshold time time-style \
             exclude exclude-from one-file-system help version",
            MANY,
        ),
    ),
    ("echo", Any),
    ("egrep", Listed(GREP)),
    ("false", Any),
    ("fgrep", Listed(GREP)),
    (
        "file",
        listed(
            "bhiLNnrvEl0",
            "eF",
            "brief no-dereference mime mime-type mime-encoding dereference no-pad no-buffer print0 raw version list \
             exclude separator extension keep-going help",
            MANY,
        ),
    ),
    ("grep", Listed(GREP)),
    (
        "head",
        listed(
            "0123456789bkmqvz",
            "cn",
            "bytes lines quiet silent verbose zero-terminated help version",
            MANY,
        ),
    ),
    (
        "hexdump",
        listed(
            "bcCdhovxLV",
            "efns",
            "one-byte-octal one-byte-char canonical two-bytes-decimal two-bytes-octal two-bytes-hex color format format-file length skip no-squeezing help version",
            MANY,
        ),
    ),
    ("hostname", listed("", "", "", 0)),
    ("id", listed("acGgnpruzZA", "", "context group groups name real user zero help version", MANY)),
    (
        "ls",
        listed(
            "1aAbBcCdDeEfFgGhHiklLmnNoOpPqQrRsStuUvWxXyZ@%,",
            "ITw",
            "all almost-all author escape block-size ignore-backups color directory dired classify file-type format full-time group-directories-first no-group human-readable si dereference-command-line dereference-command-line-symlink-to-dir hide hyperlink indicator-style inode ignore kibibytes dereference numeric-uid-gid literal hide-control-chars show-control-chars quote-name quoting-style reverse recursive size sort time time-style tabsize width context zero help version",
            MANY,
        ),
    ),
    ("md5sum", Listed(HASH)),
    (
        "nl",
        listed(
            "p",
            "bdfhilnsvw",
            "body-numbering section-delimiter footer-numbering header-numbering line-increment join-blank-lines number-format no-renumber number-separator starting-line-number number-width help version",
            MANY,
        ),
    ),
    (
        "od",
        listed(
            "0123456789abcdefhilosvwxBDFHILOX",
            "AjNSt",
            "address-radix endian skip-bytes read-bytes strings format output-duplicates width traditional help version",
            MANY,
        ),
    ),
    ("pwd", listed("LP", "", "logical physical help version", 0)),
    (
        "readlink",
        listed(
            "efmnqsvz",
            "",
            "canonicalize canonicalize-existing canonicalize-missing no-newline quiet silent verbose zero help version",
            MANY,
        ),
    ),
    (
        "realpath",
        listed(
            "eEmLPqsz",
            "",
            "canonicalize canonicalize-existing canonicalize-missing logical physical quiet relative-to relative-base strip no-symlinks zero help version",
            MANY,
        ),
    ),
    (
        "rg",
        listed(
            "acFhHiIlLnNopPqsSuUvVwxb0.",
            "ABCdeEfgjmMrtT",
            "after-context before-context context auto-hybrid-regex no-auto-hybrid-regex binary no-binary \
             block-buffered no-block-buffered byte-offset no-byte-offset case-sensitive color colors column \
             no-column context-separator no-context-separator count count-matches crlf no-crlf debug dfa-size-limit \
             encoding no-encoding engine field-context-separator field-match-separator file files \
             files-with-matches files-without-match fixed-strings no-fixed-strings follow no-follow glob \
             glob-case-insensitive no-glob-case-insensitive heading no-heading help hidden no-hidden iglob \
             ignore-case ignore-file ignore-file-case-insensitive include-zero no-include-zero invert-match \
             no-invert-match json no-json line-buffered no-line-buffered line-number no-line-number line-regexp \
             max-columns max-columns-preview no-max-columns-preview max-count max-depth maxdepth max-filesize \
             messages no-messages mmap no-mmap multiline no-multiline multiline-dotall no-multiline-dotall \
             no-config no-ignore ignore no-ignore-dot ignore-dot no-ignore-exclude no-ignore-files \
             no-ignore-global no-ignore-messages no-ignore-parent no-ignore-vcs ignore-vcs no-pcre2-unicode \
             no-require-git no-unicode null null-data one-file-system no-one-file-system only-matching \
             passthru passthrough path-separator pcre2 no-pcre2 pcre2-version pretty quiet regex-size-limit regexp \
             replace smart-case sort sortr sort-files stats no-stats stop-on-nonmatch text no-text threads trace \
             trim no-trim type type-add type-clear type-list type-not unrestricted version vimgrep \
             with-filename no-filename word-regexp",
            MANY,
        ),
    ),
    ("sha1sum", Listed(HASH)),
    ("sha256sum", Listed(HASH)),
    ("sha512sum", Listed(HASH)),
    (
        "stat",
        listed("LfFlnqrstx", "c", "dereference file-system cached format printf terse help version", MANY),
    ),
    (
        "strings",
        listed(
            "0123456789adfhovVw",
            "neTtsU",
            "all data print-file-name bytes radix include-all-whitespace target encoding unicode output-separator help version",
            MANY,
        ),
    ),
    (
        "tail",
        listed(
            "0123456789bfFqrvz",
            "cns",
            "bytes follow lines max-unchanged-stats pid quiet silent retry sleep-interval verbose zero-terminated help version",
            MANY,
        ),
    ),
    ("tr", listed("cCdstu", "", "complement delete squeeze-repeats truncate-set1 help version", MANY)),
    (
        "tree",
        listed(
            "aACcdDfFghilnNpqQrsStuUvxJ",
            "LPI",
            "dirsfirst filesfirst filelimit noreport gitignore gitfile du si prune charset sort inodes device \
             matchdirs ignore-case metafirst timefmt infofile info help version",
            MANY,
        ),
    ),
    ("true", Any),
    (
        "uname",
        listed(
            "asnrvmpio",
            "",
            "all kernel-name nodename kernel-release kernel-version machine processor hardware-platform operating-system \
             help version",
            0,
        ),
    ),
    (
        "uniq",
        listed(
            "cdDiuz",
            "fsw",
            "count repeated all-repeated skip-fields group ignore-case skip-chars unique zero-terminated check-chars \
             help version",
            1,
        ),
    ),
    ("wc", listed("clmwL", "", "bytes chars lines max-line-length words total help version", MANY)),
    ("which", listed("as", "", "all", MANY)),
    ("whoami", listed("", "", "help version", 0)),
];

impl Options {
    pub(super) const fn new(flags: &'static str, values: &'static str, long: &'static str) -> Self {
        Self { flags, values, long, operands: MANY }
    }

    /// Returns `true` if all options among these words are listed, and there are not too many operands.
    pub(super) fn permits(&self, words: &[&str]) -> bool {
        let mut operands = 0;
        let mut words = words.iter();
        let mut behind_long = false;
        while let Some(word) = words.next() {
            match word.strip_prefix('-') {
                None | Some("") => operands += 1,
                // After a long option, `--` may be its value, and then further options may follow.
                Some("-") if behind_long => {}
                Some("-") => {
                    operands += words.len();
                    break;
                }
                Some(option) => match self.option(option) {
                    Some(true) => _ = words.next(),
                    Some(false) => {}
                    None => return false,
                },
            }
            behind_long = word.starts_with("--") && *word != "--" && !word.contains('=');
        }
        operands <= self.operands
    }

    /// Returns `true` if the value of the option is in the next word. `None` if the option is not listed.
    fn option(&self, option: &str) -> Option<bool> {
        if let Some(long) = option.strip_prefix('-') {
            let name = long.split_once('=').map_or(long, |(name, _)| name);
            return self.long.split(' ').any(|known| known == name).then_some(false);
        }
        for (at, letter) in option.char_indices() {
            if self.values.contains(letter) {
                return Some(at + letter.len_utf8() == option.len());
            }
            if !self.flags.contains(letter) {
                return None;
            }
        }
        Some(false)
    }
}

/// Returns `true` if the program replaces one of the words by the words of a file, which are unknown.
pub(super) fn reads_response_file(program: &str, words: &[&str]) -> bool {
    RESPONSE_FILE_READERS.contains(&program) && words.iter().any(|word| word.starts_with('@'))
}

/// Expressions of `find` that only select or print files. All others may delete, write or run something.
const FIND: &str = "\
    -H -L -P -O0 -O1 -O2 -O3 -name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype \
    -size -empty -maxdepth -mindepth -depth -d -mount -xdev -x -newer -anewer -cnewer -newermt -newerat -newerct \
    -newermm -mtime -mmin -atime -amin -ctime -cmin -perm -user -group -uid -gid -nouser -nogroup -readable \
    -writable -executable -links -inum -samefile -lname -ilname -prune -quit -print -print0 -printf -ls -true -false \
    -not -and -or -a -o -follow -daystart -noleaf -ignore_readdir_race -noignore_readdir_race -warn -nowarn -fstype \
    -used -help --help -version --version -E -s -X";

/// Returns `true` if `find` with these words only reads. Every word with a hyphen must be listed, unless it
/// is a number. It does not matter if such a word is only a value.
pub(super) fn find_reads(words: &[&str]) -> bool {
    words.iter().all(|word| match word.strip_prefix('-') {
        None => true,
        Some(rest) => {
            rest.starts_with(|letter: char| letter.is_ascii_digit())
                || FIND.split(' ').any(|known| known == *word)
        }
    })
}

/// Returns `true` if `date` with these words only reads. `-s` and an operand set the clock. A format, which
/// begins with a plus sign, is not an operand.
pub(super) fn date_reads(words: &[&str]) -> bool {
    const OPTIONS: Options = Options {
        flags: "uRI",
        values: "",
        long: "utc universal iso-8601 rfc-3339 rfc-email rfc-2822 date reference help version",
        operands: 0,
    };
    let (formats, rest): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('+'));
    formats.len() <= 1 && OPTIONS.permits(&rest)
}
