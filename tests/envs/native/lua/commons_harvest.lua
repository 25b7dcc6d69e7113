-- The level that our environment plays, with the witness to choose from.
require 'witness'
return require 'watched_commons_harvest'
