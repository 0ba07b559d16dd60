package session

import (
	"context"
	"errors"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// OldGuests returns what the engine keeps of other versions of the guest program, which no sandbox of any instance has and no
// process is about to use. Sweeps remove it a day after it was made.
func (m *Manager) OldGuests(ctx context.Context) ([]backend.OldGuest, error) {
	keeper, ok := m.b.(backend.GuestKeeper)
	if !ok {
		return nil, nil
	}
	list, err := keeper.OldGuests(ctx)
	return list, wrapError("OldGuests", m.driver, "", engineError(err))
}

// RemoveOldGuest removes one that OldGuests returned. One that is needed since is backend.ErrExists, and stays.
func (m *Manager) RemoveOldGuest(ctx context.Context, g backend.OldGuest) error {
	keeper, ok := m.b.(backend.GuestKeeper)
	if !ok {
		return nil
	}
	return wrapError("RemoveOldGuest", m.driver, "", engineError(keeper.RemoveOldGuest(ctx, g.Name)))
}

// OldGuestReclaimAt returns when a sweep removes an old guest, unless a sandbox has it then.
func OldGuestReclaimAt(g backend.OldGuest) time.Time { return g.Created.Add(lifetimes.Guest) }

// sweepGuests removes old guests, once in a while.
func (m *Manager) sweepGuests(ctx context.Context) error {
	now := m.now()
	m.mu.Lock()
	due := now.Sub(m.guestsSwept) >= lifetimes.GuestsEvery
	if due {
		m.guestsSwept = now
	}
	m.mu.Unlock()
	if !due || ctx.Err() != nil {
		return nil
	}
	list, err := m.OldGuests(ctx)
	if err != nil {
		return err
	}
	for _, g := range list {
		if ctx.Err() != nil {
			return nil
		}
		if now.Before(OldGuestReclaimAt(g)) {
			continue
		}
		switch err := m.RemoveOldGuest(ctx, g); {
		case err == nil:
			m.log.InfoContext(ctx, "removed the guest of another version", "name", g.Name)
		case !errors.Is(err, backend.ErrExists) && ctx.Err() == nil:
			m.log.WarnContext(ctx, "cannot remove the guest of another version", "name", g.Name, "error", err)
		}
	}
	return nil
}
