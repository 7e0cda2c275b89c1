//! Spellings of one URL: in requests, in tool inputs, and among the words of commands.

use narrows_policy::Verdict::{self, Allow, Deny};
use narrows_policy::{Access, Action, DecisionReason, Kind};
use serde_json::json;

use crate::common::{SANDBOX, decide, policy, shell};

/// Returns the action as requested by a flag, and as described by an agent.
fn fetches(url: &str) -> [Action; 2] {
    let flag = Action { urls: vec![url.to_owned()], ..Action::new(Kind::Fetch) };
    [flag, Action::read(Some("fetch"), None, &json!({ "url": url }), &[])]
}

#[track_caller]
fn check(host: &str, urls: &[&str], lines: &[&str], expected: Verdict) {
    let high = policy(Access::High, &format!("[[rule]]\neffect = 'deny'\nurl = '{host}'\n"));
    let fetched = urls.iter().flat_map(|url| fetches(url).map(|action| (*url, action)));
    let run = lines.iter().map(|line| (*line, shell(line)));
    let decided = fetched.chain(run).map(|(written, action)| (written, decide(&high, &action, SANDBOX)));
    let wrong = decided.filter(|(_, decision)| decision.verdict != expected);
    let wrong: Vec<String> = wrong.map(|(written, decision)| format!("{written}: {decision}")).collect();
    assert!(wrong.is_empty(), "not {expected:?} for {host}:\n{}", wrong.join("\n"));
}

#[test]
fn every_spelling_of_a_host_is_that_host() {
    let urls = [
        "http://127.0.0.1/x",
        "http:/127.0.0.1/x",
        "http:///127.0.0.1/x",
        "HTTP://127.1/",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]:8096/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://0/",
        "http://0.0.0.0:8096/",
        "http://[::]/",
        "http://[::1]/",
        "http://localhost/",
        "http://LOCALHOST.:8096/",
        "//127.0.0.1/x",
        "view-source:http://127.0.0.1/",
    ];
    let lines = [
        "curl http://127.0.0.1:8096/x",
        "curl http:/127.0.0.1:8096/x",
        "curl http:///127.0.0.1:8096/x",
        "curl HTTP:/127.0.0.1:8096/x",
        "curl //127.0.0.1:8096/x",
        "curl 'http://[::ffff:127.0.0.1]/'",
        "curl http://0/",
        "curl 0:8096/x",
        "curl localhost:8096",
        "curl --url=127.0.0.1:8096/x",
        "curl --url 127.0.0.1:8096/x",
        "curl --url=http:/127.0.0.1:8096/x",
        "curl -x127.0.0.1:8096 x.example.com",
        "curl https://example.com/ http:/127.0.0.1/",
        "curl 'https://example.com/,http://127.0.0.1/'",
        "wget http:/127.0.0.1/x",
        "git clone http:/127.0.0.1/x.git",
        "pip install --index-url http:/127.0.0.1/ x",
    ];
    check("127.0.0.1", &urls, &lines, Deny);
    let metadata = ["http://169.254.169.254/", "http://[::ffff:a9fe:a9fe]/latest", "http:/169.254.169.254/"];
    check("169.254.169.254", &metadata, &["curl 'http://[::ffff:a9fe:a9fe]/latest'"], Deny);
    check("[::ffff:169.254.169.254]", &metadata, &[], Deny);
    check("localhost", &["http://127.0.0.1/", "http://[::1]/", "http://0/"], &["curl http:/0/"], Deny);
}

#[test]
fn a_host_is_found_without_a_scheme() {
    let lines = [
        "cat < /dev/tcp/127.0.0.1/8096",
        "cat < /dev/tcp/localhost/8096",
        "echo x > /dev/udp/127.0.0.1/53",
        "exec 3<>/dev/tcp/localhost/80",
        "bash -c 'exec 3<>/dev/tcp/localhost/80'",
        "cat </dev/tcp/::1/80",
        "gawk 'BEGIN { s = \"/inet/tcp/0/localhost/80\"; print x |& s }'",
        "scp x localhost:y",
        "scp localhost:y x",
        "scp x me@127.0.0.1:y",
        "scp x me@[::1]:y",
        "scp -J localhost x example.com:y",
        "rsync -a src localhost:x",
        "rsync -a src me@localhost::module",
        "sftp localhost",
        "sftp me@localhost:x",
        "telnet localhost 80",
        "telnet 127.0.0.1",
        "telnet 0 80",
        "socat - TCP:localhost:1",
        "socat TCP4:127.0.0.1:80,crnl -",
        "socat - TCP:0:80",
        "nc localhost 80",
        "nc -z 127.0.0.1 1-100",
        "ssh localhost",
        "ssh -L 8080:localhost:80 example.com",
        "ssh -W localhost:22 example.com",
        "ssh -oProxyJump=localhost example.com",
        "ping localhost",
        "dig @127.0.0.1 example.com",
        "openssl s_client -connect localhost:443",
        "psql -h localhost -c 'select 1' x",
        "psql --host=localhost x",
        "mysql -hlocalhost x",
        "redis-cli -h 127.0.0.1",
        "git push git@localhost:x",
        "git push localhost:x main",
        "git clone me@127.0.0.1:x.git",
        "git remote add o git@localhost:x",
        "git -c remote.o.url=git@localhost:x fetch o",
        "curl 'http://{localhost,example.com}/'",
        "curl '{127.0.0.1,example.com}/x'",
        "curl 'http://127.0.0.[1-3]/'",
        "sudo telnet localhost 80",
    ];
    check("localhost", &[], &lines, Deny);
    check("localhost:8096", &[], &["nc localhost 8096", "cat < /dev/tcp/localhost/8096"], Deny);
    check("https://example.com", &[], &["openssl s_client -connect example.com:443"], Deny);
}

#[test]
fn a_rule_does_not_match_other_hosts() {
    let urls =
        ["https://example.com/127.0.0.1", "http://10.0.0.1/", "http://[2001:db8::1]/", "http://128.0.0.1/"];
    let lines = [
        "curl https://example.com/x",
        "curl -sS -o /tmp/x https://example.com",
        "curl https://example.com/?u=/x",
        "ls C:/x",
        "git commit -m 'see http:/ and https:/'",
        "docker run -v /a:/b x",
        "echo a:/b",
        "rsync -av a/ b/",
        "rsync -av --timeout=0 a example.com:b",
        "scp -P 22 a b/c:d example.com:/srv",
        "ssh -o ConnectTimeout=0 example.com uptime",
        "telnet example.com 80",
        "psql -h db.example.com -c 'select 0' x",
        "git show HEAD:src/main.rs",
        "git push origin HEAD:main",
        "git clone git@example.com:x.git",
        "curl 'https://example.com/{a,b}'",
        "curl -H 'A: b' -d '{\"a\": 1}' https://example.com/x",
        "cat < /dev/null",
        "cat < /dev/tcp/example.com/80",
    ];
    check("127.0.0.1", &urls, &lines, Allow);
}

#[test]
fn a_file_url_is_a_file() {
    for access in [Access::Low, Access::Medium, Access::High] {
        let policy = policy(access, "");
        for url in [
            "file:///home/me/.ssh/id_rsa",
            "FILE:///home/me/.ssh/id_rsa",
            "file:/home/me/.ssh/id_rsa",
            "file://localhost/home/me/.ssh/id_rsa",
            "file:///home/me/%2essh/id_rsa",
            "file:///home/me/project/%2Eenv",
            "view-source:file:///home/me/.ssh/id_rsa",
            "view-source:view-source:file:///home/me/.ssh/id_rsa",
            " file:///home/me/.ssh/id_rsa",
        ] {
            for action in fetches(url) {
                let decision = decide(&policy, &action, SANDBOX);
                assert!(matches!(decision.because, DecisionReason::Protected { .. }), "{url}: {decision}");
            }
        }
        for action in fetches("file:///home/me/project/README.md") {
            assert_eq!(decide(&policy, &action, SANDBOX).verdict, Allow);
        }
    }
    let high = policy(Access::High, "");
    for line in [
        "curl file:///home/me/project/%2eenv",
        "curl file://$PWD/%2eenv",
        "curl file:///home/me/project/.e%6ev",
        "curl FILE:/home/me/project/%2Ee%6Ev",
        "curl file:///home/me/%2e%73sh/id_rsa",
        "wget file://localhost/home/me/.ssh/id%5Frsa",
    ] {
        let decision = decide(&high, &shell(line), SANDBOX);
        assert!(matches!(decision.because, DecisionReason::Protected { .. }), "{line}: {decision}");
    }
    for line in ["git log --format=%h", "date +%d", "printf '%s%2d' a b", "curl https://example.com/%20x"] {
        assert_eq!(decide(&high, &shell(line), SANDBOX).verdict, Allow, "{line}");
    }
}
