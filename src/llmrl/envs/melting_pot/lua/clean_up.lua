-- The clean_up level of Melting Pot, unchanged, with three more components to choose from.
require 'census'
require 'move_order'
require 'seen'
package.preload['components'] = function()
  return require 'meltingpot.lua.levels.clean_up.components'
end
return require 'meltingpot.lua.levels.clean_up.init'
