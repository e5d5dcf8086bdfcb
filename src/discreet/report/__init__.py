"""From trials to a page that a manager, an ethics board or an engineer can read: one file, offline."""
