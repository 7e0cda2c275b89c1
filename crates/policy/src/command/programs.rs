//! Lists of programs that run other programs: prefixes, shells, and programs with a language of their own.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Words in names of a program's versions and builds. Trailing digits of a word are ignored.
const BUILDS: &str = "\
    static dynamic distrib dist orig real basic tiny nox gtk athena huge normal big multiarch minimal full small core x \
    i amd arm armhf armv aarch riscv ppc ppc64le s390x linux gnu gnueabihf musl darwin apple macos freebsd unknown pc none \
    thread threads multi preview beta alpha rc nightly dev daily lts stable debug dbg release bin wrapped unwrapped \
    jit posix common mod cli cgi v p";

static NAMES: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let lists = [
        PREFIXES,
        SOURCERS,
        CALLERS,
        TEXT_TAKERS,
        SHELLS,
        OTHER_SHELLS,
        LAUNCHERS,
        STDIN_READERS,
        INTERPRETERS,
        FINDERS,
        LISTENERS,
        CODED,
    ];
    let words = lists.into_iter().flat_map(|list| list.split_whitespace());
    words.chain(SUBCOMMAND_PREFIXES.iter().map(|(name, _)| *name)).collect()
});

/// Returns the listed name of which `name` is a version or a build, such as `perl5.36-x86_64-linux-gnu` and
/// `vim.basic`. Used only for rules that forbid, because rules that permit need the exact name.
pub(super) fn family(name: &str) -> Option<&'static str> {
    if let Some(known) = NAMES.get(name) {
        return Some(known);
    }
    let begins = |at: &usize| {
        let letter = name.as_bytes()[*at];
        letter.is_ascii_digit() || b"-._+".contains(&letter)
    };
    // The longest matching name counts, so that `luajit-2.1` is not `lua`.
    let ends = (2..name.len().min(MAX_NAME_BYTES)).rev().filter(begins);
    ends.filter_map(|end| NAMES.get(name.get(..end)?).map(|known| (*known, &name[end..])))
        .find(|(known, rest)| {
            // If the beginning is the name of a shell, any ending may belong to a shell.
            super::listed(SHELLS, known) && !rest.starts_with(['_', '+']) || names_build(rest)
        })
        .map(|(known, _)| known)
}

const MAX_NAME_BYTES: usize = 64;

/// Returns `true` if `rest`, the end of a name, consists of numbers and build words.
fn names_build(rest: &str) -> bool {
    rest.split(['-', '.', '_', '+']).all(|word| {
        let letters = word.trim_end_matches(|letter: char| letter.is_ascii_digit());
        word.starts_with(|letter: char| letter.is_ascii_digit())
            || letters.is_empty()
            || super::listed(BUILDS, letters)
    })
}

pub(super) fn is_one_of(list: &str, name: &str) -> bool {
    family(name).is_some_and(|known| super::listed(list, known))
}

/// Programs that run the command after them, each with its own arguments. So the command may begin at any
/// following word. Shells are treated in the same way.
pub(super) const PREFIXES: &str = "\
    - ash bash builtin bundle busybox catchsegv chpst chroot chrt command coproc cpulimit csh dash \
    dbus-run-session doas entr env eval exec faketime fakeroot firejail fish flock function \
    gdb gtimeout ionice ksh ltrace mksh nice nohup nsenter numactl parallel perf pkexec powershell \
    prlimit proxychains pwsh rlwrap runuser script setarch setpriv setsid sh stdbuf strace su sudo \
    systemd-run taskset tcsh time timeout toybox trap unbuffer unshare valgrind watch \
    xargs xvfb-run zsh cmd direnv nix-shell torsocks torify proxychains4 sshpass expect tmux screen \
    bwrap caffeinate arch always noglob nocorrect repeat jobs emulate rbash yash posh lksh ksh93 \
    schroot systemd-inhibit dumb-init tini gosu su-exec capsh runcon sg newgrp aa-exec \
    linux32 linux64 i386 x86_64 uname26 softlimit envdir envuidgid setuidgid chronic ts ifne pee \
    hyperfine multitime watchexec nodemon reptyr dtach abduco ssh-agent dbus-launch xinit startx \
    start-stop-daemon daemonize daemon cgexec eatmydata distrobox toolbox flatpak-spawn \
    batch rbenv pyenv nodenv asdf mosh autossh slogin rsh \
    ld.so ld-linux-x86-64.so.2 ld-linux-aarch64.so.1 ld-linux.so.2 ld-musl-x86_64.so.1 ld-musl-aarch64.so.1 \
    docker kubectl mise npx nix pipenv pnpx podman poetry bunx ssh uv uvx \
    choom uclampset systemd-cat nsjail minijail0 proot fakechroot trickle catatonit mpirun mpiexec srun rr heaptrack \
    genv gnice gnohup gstdbuf gxargs gtime gchroot cross-env cross-env-shell concurrently dotenv dotenvx env-cmd \
    aws-vault doppler corepack zrun lckdo";

/// Builtins that run a file. A file name without a slash is looked up like a program.
pub(super) const SOURCERS: &str = ". source";

/// Programs that run the words after one of the listed subcommands.
pub(super) const SUBCOMMAND_PREFIXES: &[(&str, &str)] = &[
    ("bun", "x"),
    ("conda", "run"),
    ("foreman", "run"),
    ("hatch", "run"),
    ("mamba", "run"),
    ("micromamba", "run"),
    ("npm", "exec x explore"),
    ("op", "run"),
    ("pdm", "run"),
    ("pixi", "run exec"),
    ("pnpm", "exec dlx x"),
    ("rustup", "run"),
    ("rye", "run"),
    ("volta", "run"),
    ("yarn", "exec dlx"),
];

/// Prefixes that pass a text to a shell if one of the options in [`CALLS`] follows.
pub(super) const CALLERS: &str = "npx npm pnpm pnpx bunx yarn";

/// Options with which the programs in [`CALLERS`] pass a text to a shell.
pub(super) const CALLS: &str = "-c --call --shell-mode";

/// Keywords of a shell after which a command follows.
pub(super) const LEADS: &str = "! { do elif else if then until while";

/// Programs other than shells that may pass one of their arguments to a shell.
pub(super) const TEXT_TAKERS: &str = "\
    ash bash busybox cmd csh dash entr env eval expect firejail fish flock ksh mksh nix-shell nsenter \
    parallel pkexec powershell pwsh runuser screen script sh su systemd-run tcsh tmux toybox trap watch \
    zsh ssh emulate rbash yash posh lksh ksh93 hyperfine sg capsh watchexec nodemon pee mosh autossh rsh genv \
    cross-env-shell concurrently";

/// Prefixes that insert words from their input into the command.
pub(super) const FEEDERS: &str = "xargs parallel entr";

/// Shells whose language the lexer reads.
pub(super) const SHELLS: &str =
    "sh bash dash ash ksh mksh zsh rbash yash posh lksh ksh93 oksh loksh pdksh rzsh rksh";

/// Shells with another language, and similar programs that run a text.
pub(super) const OTHER_SHELLS: &str =
    "csh tcsh fish pwsh powershell cmd expect parallel nu elvish xonsh osh sash rc es";

/// Programs that start a shell by default.
pub(super) const LAUNCHERS: &str = "\
    su runuser sg newgrp script scriptreplay setarch linux32 linux64 i386 x86_64 uname26 unshare nsenter chroot schroot capsh \
    firejail bwrap fakeroot fakechroot dtach abduco screen tmux byobu rlwrap dbus-run-session nix-shell parallel entr at batch \
    expect socat login machinectl systemd-nspawn pkexec distrobox toolbox proot unbuffer reptyr run-parts";

/// Programs that read commands from their input. Some of these commands start shells.
pub(super) const STDIN_READERS: &str = "ed red ex tclsh wish ftp lftp telnet";

/// Interpreters that read code from their input by default.
pub(super) const INTERPRETERS: &str = "\
    perl ruby irb node nodejs deno bun lua luajit php osascript groovy jshell julia rscript r guile racket sbcl clisp ocaml \
    runghc ghci elixir iex erl swift scala jjs";

/// Words of git after which a command follows.
pub(super) const GIT_EXEC: &str = "run foreach --exec -x";

pub(super) const FINDERS: &str = "find gfind bfs fd fdfind";

/// Options of `find` and similar programs after which a command follows.
pub(super) const EXEC: &str = "-exec -execdir -ok -okdir -x -X --exec --exec-batch";

/// Programs other than shells that may read commands from their input.
pub(super) const LISTENERS: &str = "\
    sh bash dash ash ksh mksh zsh rbash yash posh lksh ksh93 csh tcsh fish pwsh powershell cmd expect parallel ssh su sudo \
    doas runuser nsenter chroot script busybox toybox mosh rsh at batch crontab make gmake xargs entr . source";

/// Programs whose words may contain code or commands.
const CODED: &str = "\
    awk gawk mawk nawk busybox perl python pypy ruby irb node nodejs deno bun lua luajit php tclsh wish expect osascript groovy \
    jshell julia rscript guile racket sbcl clisp ocaml runghc elixir erl swift scala \
    vim vi nvim view ex ed emacs sed gsed make gmake ninja cmake tar bsdtar gtar rsync scp sftp zip unzip \
    split logrotate gdb lldb sqlite sqlite3 psql mysql mariadb ftp lftp wget man less more ssh slogin autossh mosh \
    socat nc ncat openvpn nmap tcpdump m4 dc sort";

/// Returns `true` if the words of a program may contain something that it runs.
pub(super) fn has_code(program: &str) -> bool {
    is_one_of(CODED, program) || program.starts_with("python") || program.starts_with("pypy")
}

/// Variables whose value is one directory or several.
pub(super) const LOCATIONS: &str = "\
    PATH HOME PWD OLDPWD TMPDIR TMP TEMP CARGO_HOME CARGO_TARGET_DIR RUSTUP_HOME GOPATH GOROOT VIRTUAL_ENV NODE_PATH \
    PYTHONPATH LD_LIBRARY_PATH PKG_CONFIG_PATH XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_RUNTIME_DIR";

/// Variables whose value is a command that some program runs.
pub(super) const COMMAND_VARIABLES: &str = "\
    PAGER GIT_PAGER MANPAGER SYSTEMD_PAGER BAT_PAGER EDITOR VISUAL GIT_EDITOR GIT_SEQUENCE_EDITOR FCEDIT SUDO_EDITOR \
    GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_ASKPASS SSH_ASKPASS SUDO_ASKPASS GIT_PROXY_COMMAND BROWSER SHELL \
    LESSOPEN LESSCLOSE MAKEFLAGS RSYNC_RSH TAR_OPTIONS CC CXX LD RUSTC RUSTC_WRAPPER PERL5OPT NODE_OPTIONS PYTHONSTARTUP \
    GIT_DIFF_OPTS GIT_TEMPLATE_DIR GIT_EXEC_PATH CARGO_BUILD_RUSTC_WRAPPER RUSTDOC RUSTC_WORKSPACE_WRAPPER SVN_SSH \
    SVN_EDITOR HGEDITOR CVS_RSH FZF_DEFAULT_COMMAND LESS MAKE AR AS CPP LEX YACC CMAKE_C_COMPILER_LAUNCHER \
    CMAKE_CXX_COMPILER_LAUNCHER RUBYOPT PYTHONBREAKPOINT PERL5DB PERLDB_OPTS GIT_SSH_VARIANT MANOPT MANROFFOPT";
