// Package store is the daemon's journal: records of sandboxes and their events
// in one SQLite database. Only the daemon opens it; that it is the only one is
// held by the daemon's lock, not by the database.
//
// The database is in WAL mode with synchronous=NORMAL: what has been committed
// survives the death of the process. A power cut may take the last commits;
// the sandboxes that they spoke of are gone with it.
package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/belljar-sh/belljar/sandbox"
)

// schemaVersion is what this build writes and reads.
const schemaVersion = 1

// schema makes an empty database. Bodies are JSON: records outlive the code
// that wrote them, and SQL is asked for nothing but whole records.
const schema = `
CREATE TABLE sandboxes (
	id   TEXT PRIMARY KEY,
	body BLOB NOT NULL
) STRICT;
CREATE TABLE events (
	sandbox TEXT    NOT NULL REFERENCES sandboxes(id) ON DELETE CASCADE,
	seq     INTEGER NOT NULL,
	body    BLOB    NOT NULL,
	PRIMARY KEY (sandbox, seq)
) STRICT, WITHOUT ROWID;
`

// MaxEvents is how many events of one sandbox are kept: the newest.
const MaxEvents = 1000

// Store is an open journal of records of type R. It is safe for concurrent
// use; writes happen one after another.
type Store[R any] struct {
	db *sql.DB
	id func(*R) sandbox.ID
}

// Open opens the journal at path, making it when it is missing. id tells the
// key of a record. A journal that a newer build has written is refused.
func Open[R any](ctx context.Context, path string, id func(*R) sandbox.ID) (*Store[R], error) {
	// SQLite would make it with the umask's mode: it holds environments' names
	// and labels, which are nobody else's business.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, failed(path, err)
	}
	f.Close()
	q := url.Values{"_pragma": {
		"busy_timeout(5000)", "journal_mode(wal)", "synchronous(normal)", "foreign_keys(1)", "trusted_schema(0)",
	}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, failed(path, err)
	}
	db.SetMaxOpenConns(1) // one writer; a record is read at start only
	s := &Store[R]{db: db, id: id}
	if err := s.migrate(ctx); err != nil {
		db.Close()
		return nil, failed(path, err)
	}
	return s, nil
}

func failed(path string, err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return err
	}
	return sandbox.Errorf(sandbox.Internal, "the journal cannot be used: %w", err).WithField("journal", path).
		WithHint("when it is damaged, stop every sandbox, move it away and start again")
}

func (s *Store[R]) migrate(ctx context.Context) error {
	var version int
	if err := s.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	switch {
	case version == schemaVersion:
		return nil
	case version != 0:
		return sandbox.Errorf(sandbox.Unsupported, "the journal has schema %d and this build reads %d", version, schemaVersion).
			WithHint("install the newer build again, or move the journal away when no sandbox runs")
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, schema+"PRAGMA user_version = "+strconv.Itoa(schemaVersion))
		return err
	})
}

// Close closes the journal.
func (s *Store[R]) Close() error { return s.db.Close() }

func (s *Store[R]) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Put stores a record, replacing that of the same ID, together with events.
func (s *Store[R]) Put(ctx context.Context, r *R, events ...sandbox.Event) error {
	body, err := json.Marshal(r)
	if err != nil {
		return written(err)
	}
	id := s.id(r)
	return written(s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx,
			"INSERT INTO sandboxes (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body", id, body); err != nil {
			return err
		}
		for _, e := range events {
			b, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO events (sandbox, seq, body) VALUES (?, ?, ?)", id, e.Seq, b); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "DELETE FROM events WHERE sandbox = ? AND seq <= ?", id, e.Seq-MaxEvents); err != nil {
				return err
			}
		}
		return nil
	}))
}

// written gives an error of a write its kind. A full disk may pass.
func written(err error) error {
	if err == nil {
		return nil
	}
	return sandbox.Errorf(sandbox.Unavailable, "the journal cannot be written: %w", err).
		WithHint("is the disk full?")
}

// Load returns all records.
func (s *Store[R]) Load(ctx context.Context) ([]R, error) {
	return query[R](ctx, s.db, "SELECT body FROM sandboxes ORDER BY rowid")
}

// Events returns the stored events of a sandbox in order.
func (s *Store[R]) Events(ctx context.Context, id sandbox.ID) ([]sandbox.Event, error) {
	return query[sandbox.Event](ctx, s.db, "SELECT body FROM events WHERE sandbox = ? ORDER BY seq", id)
}

// Forget removes a record with its events.
func (s *Store[R]) Forget(ctx context.Context, id sandbox.ID) error {
	_, err := s.db.ExecContext(ctx, "DELETE FROM sandboxes WHERE id = ?", id)
	return written(err)
}

func query[T any](ctx context.Context, db *sql.DB, q string, args ...any) (out []T, err error) {
	rows, err := db.QueryContext(ctx, q, args...)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the journal cannot be read: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var body []byte
		if err := rows.Scan(&body); err != nil {
			return nil, sandbox.Errorf(sandbox.Internal, "the journal cannot be read: %w", err)
		}
		var v T
		if err := json.Unmarshal(body, &v); err != nil {
			return nil, sandbox.Errorf(sandbox.Internal, "the journal holds a record that cannot be read: %w", fmt.Errorf("%.200q: %w", body, err))
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the journal cannot be read: %w", err)
	}
	return out, nil
}
