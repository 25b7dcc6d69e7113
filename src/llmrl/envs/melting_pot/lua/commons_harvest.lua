-- The commons_harvest level of Melting Pot, unchanged, with two more components to choose from.
require 'census'
require 'move_order'
package.preload['components'] = function()
  return require 'meltingpot.lua.levels.commons_harvest.components'
end
return require 'meltingpot.lua.levels.commons_harvest.init'
