//! The console of the page of the cluster: who may use it, and what it runs.

use crate::support::Setup;
use crate::support::cluster::Cluster;
use crate::support::patience::LONG;
use crate::support::program::pluvio;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use tempfile::NamedTempFile;

const PASSWORD: &str = "a-word-of-default";

/// Posts to the console; the status and the body.
fn post(address: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut head = format!(
        "POST /api/console HTTP/1.1\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    // A refused request is not read to its end.
    let _ = write!(stream, "{head}Connection: close\r\n\r\n{body}");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.unwrap_or(0), body.to_owned())
}

/// The page as a program that may read it.
struct Page {
    address: String,
    origin: String,
    token: String,
}

impl Page {
    fn of(cluster: &Cluster) -> Self {
        let address = cluster.ready()["coordinator"]["admin"].as_str().unwrap();
        let page = crate::support::http::get(address, "/");
        let at = page
            .split_once("name=\"console-token\" content=\"")
            .unwrap();
        let token = at.1.split('"').next().unwrap();
        Self {
            address: address.to_owned(),
            origin: format!("http://{address}"),
            token: token.to_owned(),
        }
    }

    fn headers(&self) -> [(&str, &str); 4] {
        [
            ("Host", &self.address),
            ("Origin", &self.origin),
            ("X-Pluvio-Token", &self.token),
            ("Content-Type", "application/json"),
        ]
    }

    /// What a command gives, as this user.
    fn run(&self, (user, password): (&str, &str), line: &str) -> (u16, String) {
        let asked = json!({ "user": user, "password": password, "database": 0, "line": line });
        let (status, body) = post(&self.address, &self.headers(), &asked.to_string());
        let told: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status} {body}"));
        assert_eq!(told["failed"], status != 200, "{body}");
        (status, told["text"].as_str().unwrap().to_owned())
    }
}

fn start(password: &NamedTempFile) -> Cluster {
    let path = password.path().to_str().unwrap();
    Setup::servers(2)
        .flags(&["--redis-password-file", path, "--admin-console"])
        .start()
}

fn password() -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{PASSWORD}").unwrap();
    file
}

// shows: CONSOLE-2, CONSOLE-3, CONSOLE-4
#[test]
fn commands_run_with_the_rights_of_a_user_and_for_the_page_alone() {
    let password = password();
    let cluster = start(&password);
    let page = Page::of(&cluster);
    let default = ("", PASSWORD);
    assert_eq!(page.run(default, "SET \"a b\" 'x y'"), (200, "OK".into()));
    assert_eq!(page.run(default, "GET \"a b\""), (200, "\"x y\"".into()));
    let users = "ACL SETUSER bob on >bobs-word ~b:* +get +set";
    assert_eq!(page.run(default, users), (200, "OK".into()));
    // Another server than the one that made the user may answer: it knows bob within a second.
    let bob = ("bob", "bobs-word");
    crate::support::wait_for("bob to be known", || {
        let (_, text) = page.run(bob, "SET b:1 x");
        (text == "OK").then_some(()).ok_or(text)
    });
    for (who, line, words) in [
        (bob, "SET a x", "NOPERM"),
        (bob, "FLUSHALL", "NOPERM"),
        (("bob", "wrong"), "GET b:1", "WRONGPASS"),
        (("", ""), "GET b:1", "NOAUTH"),
        (default, "NONSENSE", "unknown command"),
    ] {
        let (status, text) = page.run(who, line);
        assert_eq!(status, 200, "{line}: {text}");
        assert!(
            text.starts_with("(error)") && text.contains(words),
            "{line}: {text}"
        );
    }
    for line in [
        "",
        "GET \"a",
        "SUBSCRIBE x",
        "\"blpop\" k 0",
        "monitor",
        "multi",
        "client reply off",
    ] {
        assert_eq!(page.run(default, line).0, 400, "{line}");
    }
    // More than a reply may have.
    let big = "x".repeat(50_000);
    for part in 0..6 {
        let line = format!("SETRANGE big {} {big}", part * 50_000);
        assert_eq!(page.run(default, &line).0, 200);
    }
    let (status, text) = page.run(default, "GET big");
    assert!(
        status == 502 && text.contains("longer than"),
        "{status} {text}"
    );

    // Nobody but the page of this port is heard.
    let body = json!({ "user": "", "password": PASSWORD, "database": 0, "line": "SET evil x" });
    let body = body.to_string();
    for (changed, value, status) in [
        ("Host", "evil.example", 403),
        ("Origin", "http://evil.example", 403),
        ("Origin", "null", 403),
        ("X-Pluvio-Token", "0", 403),
        ("Content-Type", "text/plain", 415),
    ] {
        let mut headers = page.headers();
        for header in &mut headers {
            if header.0 == changed {
                header.1 = value;
            }
        }
        assert_eq!(
            post(&page.address, &headers, &body).0,
            status,
            "{changed}: {value}"
        );
    }
    let missing: Vec<_> = page
        .headers()
        .into_iter()
        .filter(|h| h.0 != "Origin")
        .collect();
    assert_eq!(post(&page.address, &missing, &body).0, 403);
    let long = "x".repeat(65_600);
    assert_eq!(post(&page.address, &page.headers(), &long).0, 413);
    assert_eq!(post(&page.address, &page.headers(), "{}").0, 400);
    let get = crate::support::http::get(&page.address, "/api/console");
    assert!(get.starts_with("HTTP/1.1 405"), "{get}");
    assert_eq!(
        page.run(default, "EXISTS evil"),
        (200, "(integer) 0".into())
    );
    // The password is in no trace.
    assert!(cluster.traced("a command from the page"));
    assert!(!cluster.traced(PASSWORD) && !cluster.traced("bobs-word"));
}

#[test]
fn there_is_no_console_unless_it_is_asked_for() {
    let cluster = Setup::servers(1).start();
    let page = Page::of(&cluster);
    assert_eq!(page.token, "");
    assert_eq!(post(&page.address, &page.headers(), "{}").0, 404);
}

// shows: CONSOLE-1
#[test]
fn a_console_where_passwords_can_be_overheard_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data").display().to_string();
    let flags = |admin: &[&str]| {
        let mut flags = vec!["coordinator", "--data", &data, "--listen", "127.0.0.1:0"];
        flags.push("--admin-console");
        flags.extend(admin);
        pluvio(flags)
    };
    flags(&["--admin", "0.0.0.0:0"]).fails(2, &["--admin-console", "TLS"]);
    flags(&[]).fails(2, &["--admin-console", "--admin"]);
}

mod needs_chromium {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

    /// A browser that is told what to do over its pipe.
    struct Browser {
        process: Child,
        to: ChildStdin,
        from: BufReader<ChildStdout>,
        last: u64,
        _profile: tempfile::TempDir,
    }

    impl Browser {
        fn start() -> Self {
            let profile = tempfile::tempdir().unwrap();
            // It speaks on the files 3 and 4.
            let mut process = Command::new("sh")
                .args([
                    "-c",
                    "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1",
                ])
                .args(["chromium", "--headless", "--no-sandbox", "--disable-gpu"])
                .args(["--disable-quic", "--no-first-run", "--disable-sync"])
                .args([
                    "--disable-background-networking",
                    "--disable-component-update",
                ])
                .arg("--remote-debugging-pipe")
                .arg(format!("--user-data-dir={}", profile.path().display()))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            Self {
                to: process.stdin.take().unwrap(),
                from: BufReader::new(process.stdout.take().unwrap()),
                process,
                last: 0,
                _profile: profile,
            }
        }

        fn call(
            &mut self,
            session: Option<&str>,
            method: &str,
            with: Value,
        ) -> Result<Value, String> {
            self.last += 1;
            let mut message = json!({ "id": self.last, "method": method, "params": with });
            if let Some(session) = session {
                message["sessionId"] = session.into();
            }
            self.to.write_all(message.to_string().as_bytes()).unwrap();
            self.to.write_all(&[0]).unwrap();
            loop {
                let mut answer = Vec::new();
                self.from.read_until(0, &mut answer).unwrap();
                assert_eq!(answer.pop(), Some(0), "the browser has ended");
                let answer: Value = serde_json::from_slice(&answer).unwrap();
                if answer["id"] == self.last {
                    return match answer.get("error") {
                        None => Ok(answer["result"].clone()),
                        Some(error) => Err(format!("{method}: {error}")),
                    };
                }
            }
        }

        /// Opens a page, and gives its name.
        fn open(&mut self, address: &str) -> String {
            let target = self.call(None, "Target.createTarget", json!({ "url": address }));
            let target = target.unwrap();
            let with = json!({ "targetId": target["targetId"], "flatten": true });
            let session = self.call(None, "Target.attachToTarget", with).unwrap();
            session["sessionId"].as_str().unwrap().to_owned()
        }

        /// The result of a script in a page.
        fn try_evaluate(&mut self, page: &str, script: &str) -> Result<Value, String> {
            let with = json!({
                "expression": script, "awaitPromise": true, "returnByValue": true
            });
            let result = self.call(Some(page), "Runtime.evaluate", with)?;
            match result.get("exceptionDetails") {
                None => Ok(result["result"]["value"].clone()),
                Some(thrown) => Err(format!("{script}: {thrown}")),
            }
        }

        #[track_caller]
        fn evaluate(&mut self, page: &str, script: &str) -> Value {
            self.try_evaluate(page, script).unwrap()
        }

        /// Waits until a script gives something that is true. A page that is on its way gives
        /// errors.
        #[track_caller]
        fn wait(&mut self, page: &str, script: &str) {
            crate::support::wait_for(script, || match self.try_evaluate(page, script) {
                Ok(Value::Bool(true)) => Ok(()),
                other => {
                    let text = self.try_evaluate(page, "document.documentElement.innerText");
                    Err(format!("{other:?}: {text:?}"))
                }
            });
        }
    }

    impl Drop for Browser {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    /// Types a command and sends it.
    fn run(browser: &mut Browser, page: &str, line: &str) {
        let line = Value::from(line);
        browser.wait(page, "!document.getElementById('run').disabled");
        let script = format!(
            "document.getElementById('line').value = {line};
             document.getElementById('command').requestSubmit(); true"
        );
        browser.evaluate(page, &script);
        browser.wait(page, "!document.getElementById('run').disabled");
    }

    /// A page of another site, which anybody may have opened.
    fn evil() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move || {
            for mut stream in listener.incoming().flatten() {
                let mut first = [0; 4096];
                let _ = stream.read(&mut first);
                let page = "<title>evil</title>";
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                    page.len()
                );
            }
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        format!("http://{address}/")
    }

    // shows: CONSOLE-2
    #[test]
    fn people_run_commands_in_a_browser_and_other_sites_do_not() {
        let password = password();
        let cluster = start(&password);
        let admin = cluster.ready()["coordinator"]["admin"].as_str().unwrap();
        let mut browser = Browser::start();
        let page = browser.open(&format!("http://{admin}/"));
        browser.wait(
            &page,
            "document.title === 'Pluvio' && !document.getElementById('all').hidden
             && !document.getElementById('console').hidden",
        );
        let said = "document.getElementById('said').innerText";
        run(&mut browser, &page, "SET key x");
        browser.wait(&page, &format!("{said}.includes('NOAUTH')"));
        let log_in = format!("document.getElementById('password').value = '{PASSWORD}'; true");
        browser.evaluate(&page, &log_in);
        run(
            &mut browser,
            &page,
            "SET key \"<img src=x onerror=alert(1)>\"",
        );
        run(&mut browser, &page, "GET key");
        browser.wait(
            &page,
            &format!("{said}.includes('\"<img src=x onerror=alert(1)>\"')"),
        );
        assert_eq!(
            browser.evaluate(&page, "document.querySelectorAll('img').length"),
            0
        );
        run(&mut browser, &page, "MULTI");
        browser.wait(&page, &format!("{said}.includes('must not wait')"));

        // Another site, in the same browser: without and with what would ask for leave first.
        let evil = evil();
        let other = browser.open(&evil);
        browser.wait(&other, "document.title === 'evil'");
        let body = json!({
            "user": "", "password": PASSWORD, "database": 0, "line": "SET stolen x"
        });
        let body = Value::from(body.to_string());
        for extra in [
            "mode: 'no-cors'",
            "headers: { 'Content-Type': 'application/json', 'X-Pluvio-Token': '0' }",
        ] {
            let script = format!(
                "fetch('http://{admin}/api/console', {{ method: 'POST', body: {body}, {extra} }})
                   .then((answer) => answer.type, (error) => 'refused')"
            );
            let outcome = browser.evaluate(&other, &script);
            assert!(outcome == "opaque" || outcome == "refused", "{outcome}");
        }
        run(&mut browser, &page, "EXISTS stolen");
        browser.wait(&page, &format!("{said}.includes('(integer) 0')"));
    }
}
