//! Random moves that are faults of clients, workers or the driver.

use std::time::Duration;

use narrows_bus::core::StuckReason;

use super::World;
use crate::client::{Line, SimClient};
use crate::oracle::{ClientMessage, WorkerMessage};

const BROKEN: [&[u8]; 10] = [
    b"hello",
    b"{\"jsonrpc\":\"2.0\",\"method\":\"x\"",
    b"\"text\"",
    b"17",
    b"[]",
    b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\xfe\",\"id\":1}",
    b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\"",
    b"{\"jsonrpc\":\"2.0\",\"method\":\"a\x00b\"}",
    b"{}x",
    b"{\"a\":[}",
];

impl World {
    pub(super) fn fault(&mut self) {
        let happened = match self.random.below(34) {
            0..=3 => self.exit_some_worker(),
            4 => self.stick_some_worker(),
            5 | 6 => self.client_sends_invalid_line(),
            7 => self.client_sends_long_line(),
            8 => self.client_sends_long_batch(),
            9..=11 => self.client_reuses_id(),
            12 | 13 => self.some_client().map(|slot| self.client_goes(slot)),
            14 => self.end_some_input(),
            15 | 16 => self.forge_answer(),
            17 | 18 => self.worker_sends_noise(),
            19 | 20 => self.worker_sends_false_answer(),
            21 => self.stop_or_resume_reading(),
            22..=24 => self.client_sends_batch(),
            25 => self.client_cancels_request(),
            26 | 27 => self.client_opens_foreign_session(),
            28 => self.client_uses_foreign_session(),
            29 => self.make_worker_ignore_cancellations(),
            30 => {
                let time = Duration::from_secs(self.random.pick(&[2, 7, 31, 61, 310]));
                self.pass(time);
                self.close_stalled_clients(time);
                Some(())
            }
            31 => {
                let on = self.random.one_in(3);
                self.core.set_pressure(on);
                Some(())
            }
            32 => self.reload_config(),
            _ if self.random.one_in(12) => {
                self.drain();
                Some(())
            }
            _ => self.worker_sends_batch(),
        };
        self.faults += usize::from(happened.is_some());
    }

    /// A worker exits at a random point.
    fn exit_some_worker(&mut self) -> Option<()> {
        let slot = self.some_worker()?;
        let most = self.random.below(400);
        if self.net.proc(slot)?.up {
            self.worker_reads(slot, most);
        }
        let words = self.random.below(4);
        self.end_worker(slot, words);
        Some(())
    }

    fn stick_some_worker(&mut self) -> Option<()> {
        let slot = self.some_worker()?;
        let proc = self.net.proc(slot).filter(|proc| proc.up && proc.stop.is_none())?;
        let bytes_read = proc.read;
        let why = self.random.pick(&[
            StuckReason::Stopped,
            StuckReason::Undrained,
            StuckReason::InputClosed { bytes_read },
            StuckReason::OutputClosed,
        ]);
        let listens = !matches!(why, StuckReason::InputClosed { .. });
        let proc = self.net.proc(slot)?;
        // A worker that has only closed its input may still answer the requests that it has read.
        (proc.frozen, proc.closed) = (listens, !listens);
        self.report_stuck(slot, why);
        if listens && self.net.proc(slot).is_some_and(|proc| proc.stop.is_none()) {
            self.wrong(format!("F6 worker {slot} is stuck ({why:?}) and was not stopped"));
        }
        Some(())
    }

    /// Returns a client that the core reads.
    fn some_readable_client(&mut self) -> Option<usize> {
        let slot = self.some_client()?;
        self.is_read(slot).then_some(slot)
    }

    fn client_sends_invalid_line(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let text = self.random.pick(&BROKEN).to_vec();
        self.pass_client_line(
            slot,
            Line { text, said: vec![ClientMessage::Broken], array: false, long: false },
        );
        Some(())
    }

    fn client_sends_long_line(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let tag = self.store.tag();
        let line = self.net.ports[slot].as_mut()?.client.long_request(tag, &mut self.random);
        self.pass_client_line(slot, line);
        Some(())
    }

    /// A batch with too many entries, which counts as one fault.
    fn client_sends_long_batch(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let text = format!("[{}{{}}]", "{},".repeat(self.scenario.config.limits.max_batch)).into_bytes();
        self.pass_client_line(
            slot,
            Line { text, said: vec![ClientMessage::Broken], array: false, long: false },
        );
        Some(())
    }

    fn client_reuses_id(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let random = &mut self.random;
        let client = &mut self.net.ports[slot].as_mut()?.client;
        if client.flight.is_empty() {
            return None;
        }
        let waiting = &client.flight[random.below(client.flight.len())];
        let (id, session) = (waiting.id.clone(), waiting.session.clone());
        let tag = self.store.tag();
        let method = if client.traits.is_plain() { "work" } else { "_x/custom" };
        let line = client.request_with_id(id, tag, method, session, 2, random);
        self.pass_client_line(slot, line);
        Some(())
    }

    fn end_some_input(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        self.client_ends(slot);
        Some(())
    }

    /// A client answers a request that was sent to another client, or to none.
    fn forge_answer(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let other = self.some_client()?;
        let id = match self.net.port(other)?.client.questions.last() {
            Some(id) if other != slot => id.clone(),
            _ => format!("{}", self.random.below(40)).into_bytes(),
        };
        let line = SimClient::answer(self.store.tag(), &id, &mut self.random);
        self.pass_client_line(slot, line);
        Some(())
    }

    fn stop_or_resume_reading(&mut self) -> Option<()> {
        let slot = self.some_client()?;
        self.net.port(slot)?.client.asleep ^= true;
        Some(())
    }

    fn make_worker_ignore_cancellations(&mut self) -> Option<()> {
        let slot = self.some_worker()?;
        let proc = self.net.proc(slot)?;
        proc.worker.never_initializes |= !proc.up;
        proc.worker.ignores_cancel = true;
        Some(())
    }

    fn worker_sends_noise(&mut self) -> Option<()> {
        let slot = self.some_worker()?;
        let text = self.random.pick(&BROKEN).to_vec();
        let proc = self.net.proc(slot).filter(|proc| proc.up)?;
        proc.worker.out.push_back((text, vec![WorkerMessage::Noise]));
        Some(())
    }

    /// A worker answers an unknown request, answers twice, answers invalidly, or uses a session of another
    /// worker.
    fn worker_sends_false_answer(&mut self) -> Option<()> {
        let slot = self.some_worker()?;
        let random = &mut self.random;
        let others: Vec<String> =
            self.net.procs.iter().flatten().flat_map(|proc| proc.worker.sessions.keys().cloned()).collect();
        let worker = &mut self.net.procs[slot].as_mut().filter(|proc| proc.up)?.worker;
        match random.below(6) {
            4 => return worker.cancel(&mut self.store),
            5 if random.one_in(2) => {
                let text = b"{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{\"y\":\"yyyyyyyyyy".to_vec();
                worker.out.push_back((text, vec![WorkerMessage::TooLong]));
            }
            0 => {
                let id = worker.answered.last().cloned().unwrap_or_else(|| b"12345".to_vec());
                let id = String::from_utf8_lossy(&id).into_owned();
                let text =
                    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"again\":true}}}}").into_bytes();
                worker.out.push_back((text, vec![WorkerMessage::Noise]));
            }
            1 => {
                let text = b"{\"jsonrpc\":\"2.0\",\"id\":\"never\",\"result\":{}}".to_vec();
                worker.out.push_back((text, vec![WorkerMessage::Noise]));
            }
            2 if !worker.tasks.is_empty() => {
                let at = random.below(worker.tasks.len());
                if worker.tasks[at].begun {
                    return None;
                }
                let task = worker.tasks.remove(at);
                let id = String::from_utf8_lossy(&task.id).into_owned();
                let mut code = -32603;
                let kind = random.below(5);
                let text = if kind < 2 {
                    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id}}}")
                } else if kind == 2 {
                    code = -32013;
                    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"x\":\"xxxxxxxx")
                } else {
                    format!(
                        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}},\"error\":{{\"code\":1,\"message\":\"\"}}}}"
                    )
                };
                worker
                    .out
                    .push_back((text.into_bytes(), vec![WorkerMessage::Malformed { id: task.id, code }]));
            }
            _ => {
                let name = others.into_iter().find(|name| !worker.sessions.contains_key(name))?;
                if random.one_in(2) {
                    worker.update(&name, None, 2, &mut self.store);
                } else {
                    worker.question(&name, None, &mut self.store);
                }
            }
        }
        Some(())
    }

    /// A client sends several messages in one batch, some of them invalid.
    fn client_sends_batch(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let mut lines = Vec::new();
        for _ in 0..=self.random.below(4) {
            if self.random.one_in(5) {
                lines.push(Line {
                    text: b"{\"x\":1}".to_vec(),
                    said: vec![ClientMessage::Broken],
                    array: false,
                    long: false,
                });
            } else {
                lines.extend(self.client_line(slot, true));
            }
        }
        if lines.is_empty() {
            return None;
        }
        self.pass_client_line(slot, SimClient::batch(lines));
        Some(())
    }

    fn client_cancels_request(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let client = &self.net.ports[slot].as_ref()?.client;
        if client.flight.is_empty() {
            return None;
        }
        let waiting = &client.flight[self.random.below(client.flight.len())];
        if client.flight.iter().filter(|other| other.id == waiting.id).count() > 1
            || waiting.method == "initialize"
        {
            return None;
        }
        let line = SimClient::cancel(self.store.tag(), waiting);
        self.pass_client_line(slot, line);
        Some(())
    }

    /// A client loads or resumes a session that another client had or has.
    fn client_opens_foreign_session(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let held = |port: &crate::net::Port| {
            port.client.sessions.iter().map(|name| (port.client.pool, name.clone())).collect::<Vec<_>>()
        };
        let live: Vec<(usize, String)> = self.net.ports.iter().flatten().flat_map(held).collect();
        let random = &mut self.random;
        let client = &mut self.net.ports[slot].as_mut()?.client;
        let from = if random.one_in(3) { &live } else { &self.left };
        let names: Vec<&String> =
            from.iter().filter(|(pool, _)| *pool == client.pool).map(|(_, name)| name).collect();
        if names.is_empty() || !client.greeted || client.traits.is_plain() {
            return None;
        }
        let name = names[random.below(names.len())].clone();
        if client.sessions.contains(&name) {
            return None;
        }
        let method =
            if client.traits.version() == 1 && random.one_in(2) { "session/load" } else { "session/resume" };
        let line = client.request(self.store.tag(), method, Some(name), 2, random);
        self.pass_client_line(slot, line);
        Some(())
    }

    /// A client uses a session of another client, or an unknown one.
    fn client_uses_foreign_session(&mut self) -> Option<()> {
        let slot = self.some_readable_client()?;
        let names: Vec<String> =
            self.net.ports.iter().flatten().flat_map(|port| port.client.sessions.iter().cloned()).collect();
        let random = &mut self.random;
        let client = &mut self.net.ports[slot].as_mut()?.client;
        let name = if names.is_empty() || random.one_in(3) {
            "nowhere".to_owned()
        } else {
            names[random.below(names.len())].clone()
        };
        if client.traits.is_plain() || client.sessions.contains(&name) {
            return None;
        }
        let line = if random.one_in(4) {
            SimClient::notification(self.store.tag(), "session/cancel", &name)
        } else {
            client.request(self.store.tag(), "session/prompt", Some(name), 2, random)
        };
        self.pass_client_line(slot, line);
        Some(())
    }

    fn worker_sends_batch(&mut self) -> Option<()> {
        let slot = self.some_worker()?;
        let proc = self.net.proc(slot).filter(|proc| proc.worker.out.len() > 1)?;
        // The end of a session ends its turns, whatever the batch says about them later.
        let plain = |reply: &WorkerMessage| match reply {
            WorkerMessage::Noise
            | WorkerMessage::TooLong
            | WorkerMessage::Malformed { .. }
            | WorkerMessage::Full { .. } => false,
            WorkerMessage::Answer { closes, .. } => closes.is_none(),
            WorkerMessage::Request { .. } | WorkerMessage::Notify { .. } => true,
        };
        let whole =
            |line: &(Vec<u8>, Vec<WorkerMessage>)| line.0.first() == Some(&b'{') && line.1.iter().all(plain);
        let count = proc.worker.out.iter().take(4).take_while(|line| whole(line)).count();
        let mut text = vec![b'['];
        let mut said = Vec::new();
        for (line, replies) in proc.worker.out.drain(..count) {
            if text.len() > 1 {
                text.push(b',');
            }
            text.extend_from_slice(&line);
            said.extend(replies);
        }
        text.push(b']');
        if !said.is_empty() {
            proc.worker.out.push_front((text, said));
        }
        Some(())
    }

    /// A reload with other limits, with another environment of a pool, or without one of the pools.
    fn reload_config(&mut self) -> Option<()> {
        if self.draining {
            return None;
        }
        let undecided = self.net.ports.iter().flatten().any(|port| !port.client.has_asked());
        let config = &mut self.scenario.config;
        let at = self.random.below(config.pools.len());
        match self.random.below(8) {
            0 if !undecided && config.pools.len() > 1 && at + 1 == config.pools.len() => {
                let gone = config.pools.remove(at);
                config.listen.retain(|listen| listen.pool.as_deref() != Some(&*gone.name));
            }
            1..=3 => {
                config.pools[at].env.insert("N".to_owned(), format!("{}", self.faults));
            }
            _ => config.pools[at].instances = 1 + u32::try_from(self.random.below(4)).unwrap_or(0),
        }
        self.reload();
        Some(())
    }
}
