//! What clients ask for in messages, and the answers, at once or once the worker has done its part.

use std::sync::Arc;

use super::accepting::{begin_anew, out_of_resources};
use super::{Node, Refused};
use crate::metrics::NodeEvent;
use crate::pool::PAGE_BYTES;
use crate::protocol::{Body, GrantAccess, Message, Nonce, Reason};
use crate::server::session::Place;
use crate::server::worker::{Done, Job};

impl Node {
    /// Answers a message. An error ends the session.
    pub(super) fn handle_message(&mut self, number: u64, message: Message) -> Result<(), String> {
        let capacity = self.capacity();
        let Some(session) = self.sessions.get_mut(&number) else {
            return Ok(());
        };
        if session.busy.is_some() {
            return Err("a message before the answer to the last one".to_owned());
        }
        let request = message.request;
        let free = session.left_of(capacity).min(self.shared.pool.free());
        match message.body {
            Body::Hello(name) if session.name.is_none() => {
                session.name = Some(name.as_str().to_owned());
                let event = NodeEvent::Joined {
                    name: name.as_str().to_owned(),
                    address: session.peer,
                };
                session.send(request, Body::Done { free })?;
                self.shared.counted().clients_total += 1;
                self.tell(&event);
                Ok(())
            }
            _ if session.name.is_none() => Err("a message before its name".to_owned()),
            Body::Ping => session.send(request, Body::Done { free }),
            Body::Goodbye => {
                session.is_leaving = true;
                session.send(request, Body::Done { free })
            }
            Body::Leave { queue } => {
                let key = session.queue_of(queue);
                session.send(request, Body::Done { free })?;
                if let Some(key) = key {
                    self.drop_id(number, key, "it left");
                }
                Ok(())
            }
            Body::Rejoin { queue, packet } => {
                let found = session.queue_of(queue).and_then(|key| session.queues.get(&key));
                let begun = match found {
                    None => Err((Reason::UnknownSession, 0)),
                    Some(queue) => begin_anew(queue, packet).map_err(|error| out_of_resources(&error)),
                };
                match begun {
                    Ok(()) => session.send(request, Body::Done { free }),
                    Err((reason, detail)) => session.send(request, Body::Refused { reason, detail }),
                }
            }
            Body::Grant { bytes, access } => {
                let job = self.grant(number, request, bytes, access);
                self.begin_job(number, request, job)
            }
            Body::Release { grant } => {
                let job = self.release(number, request, grant);
                self.begin_job(number, request, job)
            }
            Body::Seal { grant } => {
                let job = self.seal(number, request, grant);
                self.begin_job(number, request, job)
            }
            Body::Attach { key } => {
                let job = self.attach(number, request, &key);
                self.begin_job(number, request, job)
            }
            Body::Share { grant } => self.share(number, request, grant),
            Body::Hello(_) | Body::Done { .. } | Body::Granted { .. } | Body::Shared { .. } | Body::Refused { .. } => {
                Err("a message that is not a client's".to_owned())
            }
        }
    }

    /// Hands a job to the worker, or tells the client why not.
    fn begin_job(&mut self, number: u64, request: u64, job: Result<Job, Refused>) -> Result<(), String> {
        let Some(session) = self.sessions.get_mut(&number) else {
            return Ok(());
        };
        match job {
            Ok(job) => {
                session.busy = Some(request);
                let worker = self.jobs.as_ref().ok_or("the node is stopping")?;
                worker
                    .send(job)
                    .map_err(|_| "the node's second thread has ended".to_owned())
            }
            Err((reason, detail)) => {
                self.shared.count_refusal(reason);
                session.send(request, Body::Refused { reason, detail })
            }
        }
    }

    fn grant(&mut self, number: u64, request: u64, bytes: u64, access: GrantAccess) -> Result<Job, Refused> {
        let capacity = self.capacity();
        let grants_max = self.options.grants_per_client_max;
        let pool = &self.shared.pool;
        let session = self.sessions.get_mut(&number).ok_or((Reason::UnknownSession, 0))?;
        let left = session.left_of(capacity);
        // Whole pages are taken.
        let pages = bytes.checked_next_multiple_of(PAGE_BYTES);
        if bytes == 0 {
            return Err((Reason::EmptyGrant, 0));
        }
        if session.grants.len() >= grants_max as usize {
            return Err((Reason::GrantsMax, grants_max.into()));
        }
        if pages.is_none_or(|pages| pages > left) {
            return Err((Reason::ClientCapacity, left));
        }
        let slice = pool.take(bytes).ok_or_else(|| (Reason::PoolFull, pool.longest()))?;
        session.granted_bytes += slice.bytes();
        session.sealable = access == GrantAccess::ReadOnly;
        Ok(Job::Make {
            session: number,
            request,
            domain: Arc::clone(&session.domain),
            slice,
        })
    }

    fn release(&mut self, number: u64, request: u64, grant: u64) -> Result<Job, Refused> {
        let session = self.sessions.get_mut(&number).ok_or((Reason::UnknownSession, 0))?;
        let lease = session.grants.remove(&grant).and_then(|granted| granted.lease);
        let lease = lease.ok_or((Reason::NoSuchGrant, 0))?;
        session.granted_bytes -= lease.bytes();
        Ok(Job::Release {
            session: number,
            request,
            lease,
        })
    }

    fn seal(&mut self, number: u64, request: u64, grant: u64) -> Result<Job, Refused> {
        let session = self.sessions.get_mut(&number).ok_or((Reason::UnknownSession, 0))?;
        let granted = session.grants.get_mut(&grant).ok_or((Reason::NoSuchGrant, 0))?;
        let lease = granted
            .lease
            .take_if(|_| granted.sealable)
            .ok_or((Reason::NotReadOnly, 0))?;
        Ok(Job::Seal {
            session: number,
            request,
            grant,
            domain: Arc::clone(&session.domain),
            lease,
        })
    }

    /// Tells a client the key of its sealed grant.
    fn share(&mut self, number: u64, request: u64, grant: u64) -> Result<(), String> {
        let Some(session) = self.sessions.get_mut(&number) else {
            return Ok(());
        };
        let shared = match session.grants.get(&grant) {
            None => Err((Reason::NoSuchGrant, 0)),
            Some(granted) => match &granted.lease {
                Some(lease) if granted.is_sealed => {
                    let key = self.shares.key_of(lease.memory());
                    key.map_err(|error| out_of_resources(&error))
                }
                _ => Err((Reason::NotSealed, 0)),
            },
        };
        match shared {
            Ok(key) => session.send(request, Body::Shared { key }),
            Err((reason, detail)) => {
                self.shared.count_refusal(reason);
                session.send(request, Body::Refused { reason, detail })
            }
        }
    }

    /// What is shared takes no memory of the pool, and counts for what the client may have.
    fn attach(&mut self, number: u64, request: u64, key: &Nonce) -> Result<Job, Refused> {
        let capacity = self.capacity();
        let grants_max = self.options.grants_per_client_max;
        let session = self.sessions.get_mut(&number).ok_or((Reason::UnknownSession, 0))?;
        if session.grants.len() >= grants_max as usize {
            return Err((Reason::GrantsMax, grants_max.into()));
        }
        let slice = self.shares.memory(key).ok_or((Reason::NotShared, 0))?;
        let left = session.left_of(capacity);
        if slice.bytes() > left {
            return Err((Reason::ClientCapacity, left));
        }
        session.granted_bytes += slice.bytes();
        session.sealable = false;
        Ok(Job::Attach {
            session: number,
            request,
            domain: Arc::clone(&session.domain),
            slice,
        })
    }

    /// Goes on with what the worker has done.
    pub(super) fn handle_done(&mut self, done: Done) {
        let (number, request) = match &done {
            Done::Made { session, request, .. }
            | Done::Sealed { session, request, .. }
            | Done::Released { session, request } => (*session, *request),
        };
        let capacity = self.capacity();
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        session.busy = None;
        let outcome = match done {
            Done::Made { made, .. } => made.map(|lease| {
                let grant = session.next_grant;
                session.next_grant += 1;
                Some(session.keep(grant, lease, session.sealable))
            }),
            Done::Sealed { sealed, grant, .. } => {
                if sealed.is_err() {
                    session.grants.remove(&grant);
                }
                sealed.map(|lease| {
                    let place = session.keep(grant, lease, false);
                    if let Some(granted) = session.grants.get_mut(&grant) {
                        granted.is_sealed = true;
                    }
                    Some(place)
                })
            }
            Done::Released { .. } => Ok(None),
        };
        // What was asked for and not made is not the client's: the account is what its grants sum up to.
        session.granted_bytes = session.grants.values().map(|granted| granted.bytes).sum();
        let free = session.left_of(capacity).min(self.shared.pool.free());
        let answer = match outcome {
            Ok(None) => Body::Done { free },
            Ok(Some(Place {
                grant,
                address,
                bytes,
                rkey,
            })) => Body::Granted {
                grant,
                address,
                bytes,
                rkey,
                free,
            },
            Err((reason, detail)) => {
                self.shared.count_refusal(reason);
                Body::Refused { reason, detail }
            }
        };
        if let Err(why) = session.send(request, answer) {
            self.end_session(number, &why);
        }
    }
}
